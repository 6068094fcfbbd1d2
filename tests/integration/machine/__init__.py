# SPDX-License-Identifier: Apache-2.0
"""A machine in the machine, with devices that its kernel really drives.

Software emulation, so that neither KVM, an IOMMU nor any accelerator is
needed. It is a compute node of the cloud outside of it.
"""
