# SPDX-License-Identifier: Apache-2.0
"""A nested machine: an emulated host with devices for its own kernel.

QEMU emulates it in software, so the test needs no KVM, IOMMU or accelerator.
The emulated processors have AMD SVM, so that the machine runs its guests with
KVM. It is a compute node of the cloud, which runs outside of the machine.
"""
