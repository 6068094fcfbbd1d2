# SPDX-License-Identifier: Apache-2.0
"""Tells guests the roles of their devices.

Nova's device metadata, in the metadata service and on the config drive, has
each device as a disk, since Nova writes only disks, ports and shares. The
document for programs is in the firmware configuration of QEMU, which a guest
reads without network.

Seams: ``nova.objects.DiskMetadata`` and ``PCIDeviceBus``;
``nova.virt.libvirt.host.Host.write_instance_config`` and ``get_guest``.
"""

import json

from nova import objects
import nova.conf
from nova.virt.libvirt import host as libvirt_host
from oslo_log import log as logging
from oslo_serialization import jsonutils

from nova_accel.compute import instance_request
from nova_accel.compute import nonfatal
from nova_accel.compute.guest import fw_cfg
from nova_accel.compute.state import libvirt_domains
from nova_accel.compute.state import node_state
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core.guest import device_role
from nova_accel.core.guest import guest_document
from nova_accel.core.guest import nccl_topology
from nova_accel.core.placement import inventory
from nova_accel.host import libvirt_xml

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

#: The tag of all devices of ours.
TAG = 'accel'

#: The limit of a server's device metadata. Nova's database has a TEXT of 64
#: KiB for it.
MAX_BYTES = 60 * 1024


class GuestRoles:
    """Reads the roles of a guest's devices from its domain."""

    def __init__(self, state: node_state.NodeState,
                 nova_host: libvirt_host.Host) -> None:
        self._state = state
        self._host = nova_host

    def with_metadata(self, metadata, instance):
        """Return Nova's metadata of a guest, with the devices of ours.

        :param metadata: nova.objects.InstanceDeviceMetadata, None if empty
        """
        if not instance_request.of(instance).classes:
            return metadata
        with nonfatal.step('describe the devices of a guest in its metadata'):
            xml = self._host.get_guest(instance).get_xml_desc()
            here, _unreadable = self._state.read_or_empty(cached=True)
            ours = [_metadata(*numbered) for numbered in enumerate(
                _roles(instance, xml, here))]
            theirs = metadata.devices if metadata else []
            described = objects.InstanceDeviceMetadata(
                devices=[*theirs, *ours])
            size = len(jsonutils.dumps(described.obj_to_primitive()))
            if size > MAX_BYTES:
                LOG.warning(
                    'The metadata of this server does not describe its '
                    'devices: it would have %d bytes, more than %d', size,
                    MAX_BYTES, instance=instance)
            elif ours:
                return described
        return metadata

    def with_document(self, xml: str, instance) -> str:
        """Return the XML of a guest that starts, with its document.

        libvirt chooses addresses when a domain is defined. So the domain is
        defined here if a device of ours has no address yet.

        :param xml: of a domain with devices of ours
        """
        xml = fw_cfg.without_document(xml)
        if not CONF.nova_accel.guest_device_document or not (
                fw_cfg.is_readable(xml)):
            return xml
        with nonfatal.step('describe the devices of a guest to its programs'):
            here, _unreadable = self._state.read_or_empty(cached=True)
            placed, roles = xml, _roles(instance, xml, here)
            if not all(role.position for role in roles):
                placed = self._define(xml)
                roles = _roles(instance, placed, here)
            cells = libvirt_xml.numa_cells_of(placed)
            document = guest_document.build(
                instance.uuid, roles, cells,
                _nccl(roles, here.host, bool(cells), instance))
            # Scripts can read it line by line.
            return fw_cfg.with_document(xml, json.dumps(document, indent=1),
                                        instance)
        return xml

    def _define(self, xml: str) -> str:
        """Define a domain, and return its XML with all addresses."""
        try:
            return self._host.write_instance_config(xml).get_xml_desc(
                dump_inactive=True)
        except libvirt_domains.libvirt().libvirtError as error:
            # Nova is about to define it, and to report the error.
            LOG.debug('Could not define a domain: %s', error)
            return xml


def _roles(instance, xml: str, here: inventory.NodeInventory,
           ) -> tuple[device_role.DeviceRole, ...]:
    """Return the roles of the devices of ours in a domain."""
    return device_role.roles(
        hostdev.ours(libvirt_xml.parse(xml)[1]),
        libvirt_xml.guest_buses_of(xml), here,
        instance_request.of(instance).group_names)


def _nccl(roles, host: model.Host, has_cells: bool, instance) -> str:
    """Return NCCL's topology file, '' for none."""
    try:
        return nccl_topology.render(roles, host, has_cells)
    except ValueError as error:
        # A file that NCCL cannot read would stop the programs.
        LOG.warning('The guest gets no topology file for NCCL: %s', error,
                    instance=instance)
        return ''


def _metadata(number: int, role: device_role.DeviceRole,
              ) -> objects.DiskMetadata:
    # Nova warns of a disk without a serial number when it detaches a volume.
    # An alias may have the address of a card of the host.
    device = objects.DiskMetadata(tags=[TAG, *(
        f'{TAG}.{key}={value}' for key, value in _tags(role)
        if value not in (None, ''))], serial=f'{TAG}-{number}')
    if role.position:
        device.bus = objects.PCIDeviceBus(address=str(role.position.address))
    return device


def _tags(role: device_role.DeviceRole):
    yield 'group', role.group
    yield 'class', role.resource_class
    yield 'provider', role.provider
    if role.position:
        yield 'path', role.position.path
        yield 'numa_cell', role.position.cell
    yield 'host_numa_node', role.numa_node
    yield 'host_pcie_switch', role.switch
    yield 'link_domain', role.link_domain
