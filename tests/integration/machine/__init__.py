# SPDX-License-Identifier: Apache-2.0
"""A machine in the machine, with devices that its kernel really drives.

Software emulation, so that neither KVM, an IOMMU nor any accelerator is
needed. Its emulated processors have AMD's extension for guests, so that it has
KVM for its own. It is a compute node of the cloud outside of it.
"""
