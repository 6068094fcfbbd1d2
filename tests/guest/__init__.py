# SPDX-License-Identifier: Apache-2.0
"""What a guest of the real libvirt and QEMU sees of its devices."""
