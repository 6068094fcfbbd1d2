# SPDX-License-Identifier: Apache-2.0
"""Installed as ``nova.virt.accel``, because Nova looks for drivers only there.

``compute_driver = accel.LibvirtDriver`` in nova.conf means this name.
"""

from nova_accel.compute.driver import LibvirtDriver

__all__ = ['LibvirtDriver']
