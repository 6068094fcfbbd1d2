# SPDX-License-Identifier: Apache-2.0
"""The kinds on a machine that has devices: its kernel, libvirt and QEMU."""
