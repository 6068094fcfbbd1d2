# SPDX-License-Identifier: Apache-2.0
"""Who says what: the machine, libvirt, Placement, Nova, and our claims."""
