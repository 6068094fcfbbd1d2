# SPDX-License-Identifier: Apache-2.0
"""The messages between the two hosts of a live migration, and its XML.

Nova's object for them has a fixed set of fields. Nova looks up its own mdevs
and PCI devices in three dictionaries of strings. We add entries with aliases
as keys, which cannot be taken for an mdev's uuid:

``source_mdev_types``
    alias of each hostdev of ours -> its address and its description
``target_mdevs``
    alias on the source -> alias on the destination -> address there and, for
    a function, whether it is managed, ``yes`` or ``no``; also, as in Nova,
    uuid of each mdev on the source -> uuid on the destination
``pci_dev_map_src_dst``
    as in Nova, PCI address on the source -> on the destination

Seams: ``nova.objects.migrate_data.LibvirtLiveMigrateData``;
``nova.virt.libvirt.migration.get_updated_guest_xml``, which reads the XML
from the guest and rewrites it; ``nova.virt.libvirt.guest.Guest.migrate``.
"""

import collections.abc
import contextlib
import contextvars

from lxml import etree

from nova_accel.compute.state import libvirt_domains
from nova_accel.core import errors
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core import naming

Pairs = collections.abc.Mapping[str, hostdev.Hostdev]

# Whether this thread migrates a guest with devices of ours.
_moves_devices: contextvars.ContextVar[bool] = contextvars.ContextVar(
    'moves_devices', default=False)


@contextlib.contextmanager
def migrating(data) -> collections.abc.Iterator[None]:
    """Record for this thread whether the migrated guest has devices of ours.

    :param data: nova.objects.LibvirtLiveMigrateData
    """
    token = _moves_devices.set(bool(planned_hostdevs(data)))
    try:
        yield
    finally:
        _moves_devices.reset(token)


def can_post_copy() -> bool:
    """Whether the guest that this thread migrates can use post-copy.

    QEMU refuses it for a guest with VFIO devices (hw/vfio/migration.c,
    vfio_save_prepare).
    """
    return not _moves_devices.get()


def announce(data, described: collections.abc.Mapping[hostdev.Hostdev, str],
             ) -> None:
    """Write the source's hostdevs into the message.

    :param data: nova.objects.LibvirtLiveMigrateData
    :param described: the description of each hostdev
    """
    if not described:
        return
    known = data.source_mdev_types if 'source_mdev_types' in data else {}
    # Nova lists our mdevs as well, but must not choose targets for them.
    ours = {str(device.address) for device in described}
    data.source_mdev_types = {
        **{key: value for key, value in known.items() if key not in ours},
        **{device.alias: f'{device.address} {text}'
           for device, text in described.items()}}


def take_announced(data) -> dict[str, tuple[str, str]]:
    """Remove what the source announced from the message, and return it.

    Nova could not handle the aliases.

    :returns: address and description by alias
    """
    known = data.source_mdev_types if 'source_mdev_types' in data else {}
    ours = {key: value for key, value in known.items()
            if naming.parse_alias(key)}
    if ours:
        data.source_mdev_types = {key: value for key, value in known.items()
                                  if key not in ours}
    return {alias: tuple(text.partition(' ')[::2])
            for alias, text in ours.items()}


def answer(data, pairs: Pairs, addresses: collections.abc.Mapping[str, str],
           ) -> None:
    """Write the destination's hostdevs into the message.

    :param pairs: the destination's hostdev by the source's alias
    :param addresses: addresses of the source's hostdevs, by alias
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


def planned_hostdevs(data) -> tuple[hostdev.Hostdev, ...]:
    """Return the destination's hostdevs, with what a claim needs."""
    targets = data.target_mdevs if 'target_mdevs' in data else {}
    return tuple(hostdev.Hostdev(_address(value), alias,
                                 _managed(value) != 'no')
                 for alias, value in targets.items()
                 if naming.parse_alias(alias)
                 and not naming.parse_alias(value))


class MigratingGuest:
    """A guest that is migrated with devices of ours.

    Its XML has the destination's aliases and PCI addresses.

    Nova replaces addresses in the XML one after the other. If both hosts have
    the same addresses, Nova could replace one that it has just written. So
    replace ours here, all at once.

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
        """Migrate the guest without post-copy."""
        post_copy = libvirt_domains.libvirt().VIR_MIGRATE_POSTCOPY
        return self._guest.migrate(*args, flags=flags & ~post_copy, **kwargs)

    def get_xml_desc(self, *args, **kwargs):
        """Return the guest's XML, with aliases and PCI addresses replaced.

        :raises errors.AssignmentError: if the destination's message is not
            about the guest's devices
        """
        domain = etree.fromstring(self._guest.get_xml_desc(*args, **kwargs))
        left = dict(self._functions)
        for element in domain.iterfind('./devices/hostdev[alias]'):
            alias = element.find('alias')
            new = self._data.target_mdevs.get(alias.get('name'))
            if new is None:
                continue
            if not naming.parse_alias(new):
                raise _not_answered(alias.get('name'))
            alias.set('name', new)
            address = element.find('source/address')
            if element.get('type') == 'pci':
                old = _pci_address(address)
                try:
                    there = model.PciAddress.parse(left.pop(old))
                except (KeyError, ValueError):
                    raise _not_answered(old) from None
                _set(address, there)
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
    """Return 'yes' or 'no'; '' if the destination has an earlier version."""
    managed = text.partition(' ')[2]
    return managed if managed in ('yes', 'no') else ''


def _not_answered(device: str) -> errors.AssignmentError:
    return errors.AssignmentError(
        f'device {device}', 'the destination did not say which of its devices '
        'the guest gets for it', 'migrate the server again')


def _pci_address(element) -> str:
    return str(model.PciAddress(*(
        int(element.get(part), 16)
        for part in ('domain', 'bus', 'slot', 'function'))))


def _set(element, address: model.PciAddress) -> None:
    element.set('domain', f'0x{address.domain:04x}')
    element.set('bus', f'0x{address.bus:02x}')
    element.set('slot', f'0x{address.slot:02x}')
    element.set('function', f'0x{address.function:x}')
