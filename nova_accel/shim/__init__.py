# SPDX-License-Identifier: Apache-2.0
"""The driver, installed as ``nova.virt.accel``.

Nova loads drivers only from ``nova.virt``. The value of ``compute_driver`` in
nova.conf is ``accel.LibvirtDriver``.
"""

from nova_accel.compute.driver import LibvirtDriver

__all__ = ['LibvirtDriver']
