# SPDX-License-Identifier: Apache-2.0
"""Lets QEMU open the functions of a guest with iommufd.

Otherwise it opens them by their IOMMU groups. An mdev has no such setting.

XML: libvirt's formatdomain, "Host device assignment"; libvirt's news of 12.1.0
and 12.2.0. Only the functions of nova_accel get the setting, so
``<iommufd>`` for a whole guest is not used.
"""

import nova.conf
from nova.virt.libvirt import config
from nova.virt.libvirt import host as libvirt_host
from oslo_log import log as logging

from nova_accel.compute.guest import hostdev_xml
from nova_accel.host import tree
from nova_accel.host import vfio

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

#: The first libvirt with ``<driver iommufd='yes'/>``, and the first QEMU with
#: iommufd.
MIN_LIBVIRT, MIN_QEMU = (12, 1, 0), (9, 0, 0)


def use(guest: config.LibvirtConfigGuest, nova_host: libvirt_host.Host,
        instance) -> None:
    """Use iommufd if nova.conf says so and the host can; log why it cannot.

    :param guest: with its hostdevs
    :param instance: nova.objects.Instance
    """
    functions = [device for device in guest.devices
                 if isinstance(device, hostdev_xml.AliasedFunction)]
    wanted = bool(CONF.nova_accel.iommufd and functions)
    reason = _why_not(functions, nova_host) if wanted else ''
    if reason:
        LOG.warning('QEMU opens the devices of this server without iommufd, '
                    'since %s', reason, instance=instance)
    for function in functions:
        # A hostdev that was read from an older definition may have it set.
        function.iommufd = wanted and not reason


def _why_not(functions, nova_host) -> str:
    if any(function.clique is not None for function in functions):
        # docs/devel/vfio-iommufd.rst of QEMU 10.0, "P2P DMA".
        return ('GPUs with cliques access the memory of each other, which not '
                'every kernel and QEMU permits with iommufd')
    if not nova_host.has_min_version(lv_ver=MIN_LIBVIRT, hv_ver=MIN_QEMU,
                                     hv_type=libvirt_host.HV_DRIVER_QEMU):
        return ("this host's libvirt is older than 12.1.0 or its QEMU than "
                '9.0.0')
    return vfio.why_no_iommufd(tree.open_tree(CONF.nova_accel.sysfs_root))
