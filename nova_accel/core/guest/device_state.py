# SPDX-License-Identifier: Apache-2.0
"""Match devices for a live migration, in which their state moves, too.

The state of a device fits only a device of the same model, revision and, if
known, firmware; that of an mdev or vGPU only the same type of the same model.
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
    """Refuse to live migrate devices whose state cannot move.

    :param offered: the Regions that the source offers, by provider
    :raises errors.AssignmentError: naming the device and the remedy
    """
    for device in hostdevs:
        item = _region_of(device, offered)
        if item is None:
            raise errors.AssignmentError(
                f'device {device.address}',
                'no entry of device_spec offers it any more, so it is unknown '
                'whether its state can move')
        if not item.region.live_migratable:
            raise errors.AssignmentError(
                f'device {device.address} ({item.device.ids})',
                'its entry in device_spec does not say that it is '
                'live_migratable', 'migrate the server cold; or, if its '
                'driver supports it, add "live_migratable": "yes"')
        if device.clique:
            # QEMU guarantees nothing about an experimental property (x-), and
            # the devices of the destination may be behind other switches.
            raise errors.AssignmentError(
                f'device {device.address}', 'its guest was told which GPUs '
                'are its peers (gpu_cliques in the profile), and cannot be '
                'told that they change', 'migrate the server cold')


def check_complete(running: Hostdevs, held: Hostdevs) -> None:
    """Refuse to live migrate a guest that runs without one of its devices.

    It would lack the device on the destination, too, and no later check would
    notice.

    :param running: the hostdevs of the running guest
    :param held: the hostdevs of its persistent definition
    :raises errors.AssignmentError: naming the device and the remedy
    """
    attached = {device.address for device in running}
    for device in held:
        if device.address not in attached:
            raise errors.AssignmentError(
                f'device {device.address}', 'the guest runs without it, and '
                'would run without it on the destination',
                'hard reboot the server, or cold migrate it')


def describe(device: hostdev.Hostdev, host: model.Host,
             offered: Offered) -> str:
    """Describe the properties of a device that both hosts must share.

    :param host: the host of the hostdev
    """
    functions = {function.address: function for function in host.functions}
    item = _region_of(device, offered)
    if isinstance(device.address, model.PciAddress):
        text = _model(functions.get(device.address), functions)
        return (f'{item.region.variant} of {text}'
                if item and item.region.variant else text)
    if item is None:
        return 'an mdev that no entry offers'
    parent = functions.get(item.region.units[0][0] if item.region.units
                           else item.device.address)
    return f'mdev {item.region.variant} of {_model(parent, functions)}'


def _region_of(device: hostdev.Hostdev,
               offered: Offered) -> inventory.Offered | None:
    """Return the Region that offers a hostdev, or None.

    Find it by its alias, else by its address, since another provider may count
    the same type by now.
    """
    return inventory.find_by_alias(
        offered.values(), device.alias, device.address) or next(
        (item for item in offered.values() if item.region.variant
         and (device.address in item.region.instances
              or not item.region.mdevs
              and any(device.address in unit for unit in item.region.units))),
        None)


def keep_matching(host: model.Host, offered: Offered,
                  texts: collections.abc.Container[str]) -> model.Host:
    """Return the Host with only the units that match some descriptions.

    Regions that do not match stay, without units, since the names of providers
    depend on the Regions of a Device.

    :param texts: descriptions of the source's hostdevs
    """
    unique_region_name = {(item.device.address, item.region.name)
                          for item in offered.values()
                          if not all(describe(device, host, offered) in texts
                                     for device in _hostdevs(item))}
    return dataclasses.replace(host, devices=tuple(
        dataclasses.replace(device, regions=tuple(
            dataclasses.replace(region, units=())
            if (device.address, region.name) in unique_region_name else region
            for region in device.regions)) for device in host.devices))


def _hostdevs(item: inventory.Offered) -> collections.abc.Iterator[
        hostdev.Hostdev]:
    """Yield a hostdev for each function, or for one mdev, of a Region."""
    addresses = ([model.MdevAddress('')] if item.region.mdevs else
                 [address for unit in item.region.units for address in unit])
    for address in addresses:
        yield hostdev.Hostdev(address, naming.alias(
            '', item.uuid, 0, item.region.ids_of(address),
            item.region.variant))


def pair(described: collections.abc.Mapping[str, str], hostdevs: Hostdevs,
         host: model.Host, offered: Offered) -> dict[str, hostdev.Hostdev]:
    """Pair the hostdevs of the source with those of the destination.

    :param described: descriptions of the source's hostdevs, by alias
    :param hostdevs: those chosen on the destination, for the same groups
    :returns: the destination's hostdev by the source's alias
    :raises errors.AssignmentError: if a hostdev of either side has no match
    """
    free: dict[tuple[str, str], list[hostdev.Hostdev]] = (
        collections.defaultdict(list))
    for device in hostdevs:
        free[device.group, describe(device, host, offered)].append(device)
    pairs = {}
    for alias, wanted in described.items():
        group, _provider = naming.parse_alias(alias) or ('', '')
        if not free[group, wanted]:
            instead = [f'{device.address} is {text}'
                       for (name, text), devices in free.items()
                       if name == group for device in devices]
            raise errors.AssignmentError(
                f'group {group}', f'the state of {wanted} cannot move here: '
                + ('; '.join(instead) or 'no device was chosen for it'))
        pairs[alias] = free[group, wanted].pop(0)
    for (group, text), devices in free.items():
        if devices:
            raise errors.AssignmentError(
                f'group {group}', f'{text} is allocated to the server, but '
                'its guest has no device that could move there',
                'hard reboot the server, or cold migrate it')
    return pairs


def _model(function: model.Function | None,
           functions: model.Functions) -> str:
    if function is None:
        return 'a missing device'
    # A virtual function has the firmware of its card.
    card = model.card_of(function, functions) or function
    firmware = card.firmware_text
    subsystem = (f' {function.subsystem_vendor_id}:'
                 f'{function.subsystem_product_id}'
                 if function.subsystem_vendor_id else '')
    return (f'{function.ids}{subsystem} revision {function.revision:02x}'
            + (f' firmware {firmware}' if firmware else ''))
