# SPDX-License-Identifier: Apache-2.0
"""Stage 2: nova-compute, libvirt and QEMU in a nested machine."""
