# SPDX-License-Identifier: Apache-2.0
"""State of the node: sysfs, libvirt, Placement, Nova, and our own claims."""
