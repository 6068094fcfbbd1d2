# SPDX-License-Identifier: Apache-2.0
"""What the two hosts of a live migration tell each other, and its XML.

Nova's object for it has a fixed set of fields, of which two are dictionaries
of strings that Nova reads by the mdevs and devices that it finds. Ours stand
beside them, by alias, which is no mdev's uuid:

``source_mdev_types``
    of each hostdev of ours, by alias, its address and what it is
``target_mdevs``
    by the source's alias, the destination's; by that, its address, and of a
    function whether it is managed, ``yes`` or ``no``; and, as Nova has it, by
    the uuid of each mdev the one that stands in for it
``pci_dev_map_src_dst``
    as Nova has it, by PCI address

Seams: ``nova.objects.migrate_data.LibvirtLiveMigrateData``;
``nova.virt.libvirt.migration.get_updated_guest_xml``, which asks the guest
for the XML that it then rewrites; ``nova.virt.libvirt.guest.Guest.migrate``.
"""

import collections.abc
import contextlib
import contextvars

from lxml import etree

from nova_accel.compute.guest import hostdev_xml
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core import naming

Pairs = collections.abc.Mapping[str, hostdev.Hostdev]

# Whether this thread moves a guest with devices of ours.
_moves_devices: contextvars.ContextVar[bool] = contextvars.ContextVar(
    'moves_devices', default=False)


@contextlib.contextmanager
def moving(data) -> collections.abc.Iterator[None]:
    """Know in this thread whether the guest that moves has devices of ours.

    :param data: nova.objects.LibvirtLiveMigrateData
    """
    token = _moves_devices.set(bool(answered(data)))
    try:
        yield
    finally:
        _moves_devices.reset(token)


def can_post_copy() -> bool:
    """Whether the guest that this thread moves can move by post-copy.

    QEMU refuses it for a guest with VFIO devices (hw/vfio/migration.c,
    vfio_save_prepare).
    """
    return not _moves_devices.get()


def announce(data, described: collections.abc.Mapping[hostdev.Hostdev, str],
             ) -> None:
    """Have the source say what has to move.

    :param data: nova.objects.LibvirtLiveMigrateData
    :param described: what each hostdev is
    """
    known = data.source_mdev_types if 'source_mdev_types' in data else {}
    # Nova has noticed our mdevs, too; they are not for it to place.
    ours = {str(device.address) for device in described}
    data.source_mdev_types = {
        **{key: value for key, value in known.items() if key not in ours},
        **{device.alias: f'{device.address} {text}'
           for device, text in described.items()}}


def take_announced(data) -> dict[str, tuple[str, str]]:
    """What the source announced, out of Nova's sight, which knows no alias.

    :returns: address and description by alias
    """
    known = data.source_mdev_types if 'source_mdev_types' in data else {}
    ours = {key: value for key, value in known.items()
            if naming.parse_alias(key)}
    if ours:
        data.source_mdev_types = {key: value for key, value in known.items()
                                  if key not in ours}
    return {alias: tuple(text.split(' ', 1)) for alias, text in ours.items()}


def answer(data, pairs: Pairs, addresses: collections.abc.Mapping[str, str],
           ) -> None:
    """Have the destination say what stands in for what.

    :param pairs: the destination's hostdev by the source's alias
    :param addresses: of the source's hostdevs, by alias
    """
    targets = dict(data.target_mdevs) if 'target_mdevs' in data else {}
    functions = (dict(data.pci_dev_map_src_dst)
                 if 'pci_dev_map_src_dst' in data else {})
    for alias, device in pairs.items():
        targets[alias] = device.alias
        address = targets[device.alias] = str(device.address)
        if isinstance(device.address, model.MdevAddress):
            targets[addresses[alias]] = address
        else:
            functions[addresses[alias]] = address
            targets[device.alias] += ' yes' if device.managed else ' no'
    data.target_mdevs = targets
    data.pci_dev_map_src_dst = functions


def answered(data) -> tuple[hostdev.Hostdev, ...]:
    """The destination's hostdevs, as far as a claim needs them."""
    targets = data.target_mdevs if 'target_mdevs' in data else {}
    return tuple(hostdev.Hostdev(_address(value), alias,
                                 _managed(value) != 'no')
                 for alias, value in targets.items()
                 if naming.parse_alias(alias)
                 and not naming.parse_alias(value))


class Moving:
    """A guest that moves with devices of ours.

    Its XML, for the destination, has our hostdevs' new names.

    Nova puts one address after the other into the XML; where the two hosts
    have devices of the same address, one that it has put there already could
    be taken for the next to be replaced. So ours are replaced here, all at
    once.

    :param guest: nova.virt.libvirt.guest.Guest
    :param data: nova.objects.LibvirtLiveMigrateData
    """

    def __init__(self, guest, data):
        self._guest = guest
        self._data = data
        self._functions = (dict(data.pci_dev_map_src_dst)
                           if 'pci_dev_map_src_dst' in data else {})

    def __getattr__(self, name):
        return getattr(self._guest, name)

    def migrate(self, *args, flags=0, **kwargs):
        """Move the guest, and not by post-copy."""
        return self._guest.migrate(
            *args, flags=flags & ~hostdev_xml.libvirt().VIR_MIGRATE_POSTCOPY,
            **kwargs)

    def get_xml_desc(self, *args, **kwargs):
        """The XML of Nova's guest, with aliases and PCI addresses replaced."""
        domain = etree.fromstring(self._guest.get_xml_desc(*args, **kwargs))
        left = dict(self._functions)
        for element in domain.iterfind('./devices/hostdev[alias]'):
            alias = element.find('alias')
            new = self._data.target_mdevs.get(alias.get('name'))
            if new is None:
                continue
            alias.set('name', new)
            address = element.find('source/address')
            if element.get('type') == 'pci':
                old = _pci_address(address)
                _set(address, model.PciAddress.parse(self._functions[old]))
                left.pop(old)
                managed = _managed(self._data.target_mdevs.get(new, ''))
                if managed:
                    element.set('managed', managed)
        self._data.pci_dev_map_src_dst = left
        return etree.tostring(domain, encoding='unicode')


def _address(text: str) -> model.Address:
    address = text.partition(' ')[0]
    try:
        return model.PciAddress.parse(address)
    except ValueError:
        return model.MdevAddress(address)


def _managed(text: str) -> str:
    """What the destination says of it; '' from an earlier version."""
    return text.partition(' ')[2]


def _pci_address(element) -> str:
    return str(model.PciAddress(*(
        int(element.get(part), 16)
        for part in ('domain', 'bus', 'slot', 'function'))))


def _set(element, address: model.PciAddress) -> None:
    element.set('domain', f'0x{address.domain:04x}')
    element.set('bus', f'0x{address.bus:02x}')
    element.set('slot', f'0x{address.slot:02x}')
    element.set('function', f'0x{address.function:x}')
