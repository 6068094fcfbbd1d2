# SPDX-License-Identifier: Apache-2.0
"""Devices whose state moves, with their guest, to devices of another host.

A device's state fits only into its like: the same model, revision and, where
it is known, firmware; of mdevs and vGPUs the same type of the same model.
"""

import collections
import collections.abc
import dataclasses

from nova_accel.core import errors
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.placement import inventory

Hostdevs = collections.abc.Iterable[hostdev.Hostdev]
Offered = collections.abc.Mapping[str, inventory.Offered]


def check_source(hostdevs: Hostdevs, offered: Offered) -> None:
    """Refuse to move a device that cannot be.

    :param offered: what the source offers, by provider
    :raises errors.AssignmentError: naming the device and the remedy
    """
    for device in hostdevs:
        item = _region_of(device, offered)
        if item is None:
            raise errors.AssignmentError(
                f'device {device.address}',
                'no entry of device_spec offers it any more, so nobody knows '
                'whether its state can move')
        if not item.region.live_migratable:
            raise errors.AssignmentError(
                f'device {device.address} ({item.device.ids})',
                'its entry in device_spec does not say that it is '
                'live_migratable', 'migrate the server cold; or, if its '
                'driver can do it, add "live_migratable": "yes"')


def check_whole(running: Hostdevs, held: Hostdevs) -> None:
    """Refuse to move a guest that runs short of a device.

    It would be short of it there, too, and nobody would know any more.

    :param running: what the guest has
    :param held: what its definition says
    :raises errors.AssignmentError: naming the device and the remedy
    """
    there = {device.address for device in running}
    for device in held:
        if device.address not in there:
            raise errors.AssignmentError(
                f'device {device.address}', 'the guest runs without it, and '
                'would so on another host', 'reboot the server hard, or '
                'migrate it cold')


def describe(device: hostdev.Hostdev, host: model.Host,
             offered: Offered) -> str:
    """What has to be the same on both hosts, in words.

    :param host: where the hostdev is
    """
    functions = {function.address: function for function in host.functions}
    item = _region_of(device, offered)
    if isinstance(device.address, model.PciAddress):
        text = _model(functions.get(device.address), functions)
        return (f'{item.region.variant} of {text}'
                if item and item.region.variant else text)
    parent = functions.get(item.region.units[0][0] if item.region.units
                           else item.device.address)
    return f'mdev {item.region.variant} of {_model(parent, functions)}'


def _region_of(device: hostdev.Hostdev,
               offered: Offered) -> inventory.Offered | None:
    """What offers a hostdev: as its alias says, or as it is.

    For an entry can call the same type otherwise by now.
    """
    return inventory.find_by_alias(
        offered.values(), device.alias, device.address) or next(
        (item for item in offered.values() if item.region.variant
         and (device.address in item.region.instances
              or not item.region.mdevs
              and any(device.address in unit for unit in item.region.units))),
        None)


def only_like(host: model.Host, offered: Offered,
              texts: collections.abc.Container[str]) -> model.Host:
    """The Host, as if it had only devices that are like some.

    Other Regions stay, without units: which there are says what their
    providers are called.

    :param texts: of the source's hostdevs
    """
    unlike = {(item.device.address, item.region.name)
              for item in offered.values()
              if not all(describe(device, host, offered) in texts
                         for device in _hostdevs(item))}
    return dataclasses.replace(host, devices=tuple(
        dataclasses.replace(device, regions=tuple(
            dataclasses.replace(region, units=())
            if (device.address, region.name) in unlike else region
            for region in device.regions)) for device in host.devices))


def _hostdevs(item: inventory.Offered) -> collections.abc.Iterator[
        hostdev.Hostdev]:
    """What can be given away of a Region."""
    addresses = ([model.MdevAddress('')] if item.region.mdevs else
                 [address for unit in item.region.units for address in unit])
    for address in addresses:
        yield hostdev.Hostdev(address, naming.alias(
            '', item.uuid, 0, item.region.ids_of(address),
            item.region.variant))


def pair(described: collections.abc.Mapping[str, str], hostdevs: Hostdevs,
         host: model.Host, offered: Offered) -> dict[str, hostdev.Hostdev]:
    """Which hostdev of the destination stands in for which of the source.

    :param described: of the source's hostdevs, by alias
    :param hostdevs: chosen on the destination, for the same groups
    :returns: the destination's hostdev by the source's alias
    :raises errors.AssignmentError: if one has no like, or one of the
        destination stands in for none
    """
    free: dict[tuple[str, str], list] = collections.defaultdict(list)
    for device in hostdevs:
        group, _provider = naming.parse_alias(device.alias)
        free[group, describe(device, host, offered)].append(device)
    pairs = {}
    for alias, wanted in described.items():
        group, _provider = naming.parse_alias(alias)
        if not free[group, wanted]:
            instead = [f'{device.address} is {text}'
                       for (name, text), devices in free.items()
                       if name == group for device in devices]
            raise errors.AssignmentError(
                f'group {group}', f'the state of {wanted} cannot move here: '
                + ('; '.join(instead) or 'there is nothing for it'))
        pairs[alias] = free[group, wanted].pop(0)
    for (group, text), devices in free.items():
        if devices:
            raise errors.AssignmentError(
                f'group {group}', f'{text} was promised to the server, whose '
                'guest has nothing that could move there',
                'reboot the server hard, or migrate it cold')
    return pairs


def _model(function: model.Function | None, functions) -> str:
    if function is None:
        return 'a device that is not there'
    # A virtual function runs the firmware of its card.
    card = functions.get(function.physfn, function)
    firmware = function.firmware or card.firmware
    subsystem = (f' {function.subsystem_vendor_id}:'
                 f'{function.subsystem_product_id}'
                 if function.subsystem_vendor_id else '')
    return (f'{function.ids}{subsystem} revision {function.revision:02x}'
            + (f' firmware {firmware}' if firmware else ''))
