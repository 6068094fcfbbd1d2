# SPDX-License-Identifier: Apache-2.0
"""Mediated devices: created before a guest starts, removed after use.

An entry names parents and a type. The parents stay with the host. If a card
supports one mdev type at a time, its driver shows 0 in
``available_instances`` of the other types.

Source: Documentation/ABI/testing/sysfs-bus-vfio-mdev.
"""

import collections.abc
import typing

import os_resource_classes as orc

from nova_accel.core import errors
from nova_accel.core import hostdev
from nova_accel.core import kind
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.placement import inventory
from nova_accel.host import operate
from nova_accel.host import tree as trees

TYPE = 'mdev_type'

#: The ``device_api`` that Nova's XML gives each mdev.
API = 'vfio-pci'

# No driver supports more instances: a larger number is usually an errno.
_MAX = 65536


@typing.final
class Mdevs(kind.Enumerator, kind.Suggester, kind.Preparer, kind.Inspector):
    """Finds, creates and removes mdevs."""

    def __init__(self, tree: trees.Tree):
        self._tree = tree

    def pools(self, function: model.Function, entry: kind.Entry,
              machine: kind.Machine) -> collections.abc.Iterator[kind.Pool]:
        wanted: str | None = entry.setting(TYPE)
        mdev_type = next((mdev_type for mdev_type in function.mdev_types
                          if mdev_type.name == wanted), None)
        if mdev_type is None:
            has = ', '.join(mdev_type.name
                            for mdev_type in function.mdev_types)
            raise kind.Refused(
                f'it has no mdev type {wanted}'
                + (f', only {has}' if has else ''),
                '' if has else 'load the driver that creates mdevs on it')
        if mdev_type.api not in ('', API):
            raise kind.Refused(
                f'mdevs of its type {wanted} are {errors.plain(mdev_type.api)}'
                f', and a guest can only have {API}', 'take it out of '
                'device_spec')
        ours = frozenset(map(model.MdevAddress, filter(
            naming.is_mdev_uuid, mdev_type.instances)))
        available = mdev_type.available
        is_known = available is not None and available <= _MAX
        total = len(ours) + (available or 0 if is_known else 0)
        yield kind.Pool(((function.address,),) * total, mdev_type.name,
                        resource_class=orc.VGPU, mdevs=True, instances=ours,
                        limit=_limit(function, entry, machine))
        if not is_known:
            raise kind.Refused(f'its mdev type {wanted} ' + (
                'has no readable available_instances' if available is None else
                f'has {available} available_instances, which is no valid '
                'number'),
                'check available_instances of the type and the log of its '
                'driver')

    def suggest(self, function: model.Function,
                ) -> collections.abc.Iterator[dict[str, str]]:
        for mdev_type in function.mdev_types:
            yield {TYPE: mdev_type.name}

    def prepare(self, device: hostdev.Hostdev, item: inventory.Offered,
                config: kind.DeviceConfig) -> None:
        """Create an mdev on a parent that has an available instance."""
        address = device.address
        if self._exists(address):
            return
        why = 'no parent has an available instance'
        for parent in sorted({unit[0] for unit in item.region.units}):
            try:
                operate.on(self._tree).create_mdev(
                    str(parent), item.region.variant, str(address))
            except OSError as error:
                # Usually the parent is full; it may have filled up since it
                # was read.
                why = f'{parent}: {error.strerror}'
                continue
            if self._exists(address):
                return
            why = f'{parent}: the driver did not create it'
        raise errors.AssignmentError(
            f'device {item.device.address} ({item.device.ids})',
            f'mdev {address} of type {item.region.variant} cannot be '
            f'created: {why}')

    def prepared(self, host: model.Host) -> set[model.MdevAddress]:
        """Return the mdevs that nova_accel created on the cards of a Host.

        Of any type: the entry may have named another type at that time.
        """
        cards = {device.address for device in host.devices
                 if any(region.mdevs for region in device.regions)}
        return {model.MdevAddress(instance)
                for function in host.functions
                if (function.physfn or function.address) in cards
                for mdev_type in function.mdev_types
                for instance in mdev_type.instances
                if naming.is_mdev_uuid(instance)}

    def is_ready(self, address: model.Address) -> bool | None:
        """Whether an mdev exists, on any card."""
        if not isinstance(address, model.MdevAddress):
            return None
        return naming.is_mdev_uuid(address.uuid) and self._exists(address)

    def release(self, address: model.Address) -> None:
        operate.on(self._tree).remove_mdev(str(address))

    def _exists(self, address: model.Address) -> bool:
        return str(address) in self._tree.names('sys/bus/mdev/devices')


def _limit(function: model.Function, entry: kind.Entry,
           machine: kind.Machine) -> int | None:
    """Return how many mdevs of the entry's type nova_accel may create.

    Mdevs that other programs created count towards the entry's limit.
    """
    limit: int | None = entry.setting(kind.LIMIT)
    card = function.physfn or function.address
    return None if limit is None else max(0, limit - sum(
        not naming.is_mdev_uuid(instance)
        for other in machine.functions.values()
        if card in (other.address, other.physfn)
        for mdev_type in other.mdev_types
        if mdev_type.name == entry.setting(TYPE)
        for instance in mdev_type.instances))


def _read_type(value: object) -> str:
    if not isinstance(value, str) or not naming.is_mdev_type(value):
        raise ValueError('is not the name of a type')
    return value


# A driver that cannot migrate an mdev reports that to QEMU.
KIND = kind.Kind(open=Mdevs, keys={
    TYPE: _read_type, kind.LIMIT: kind.read_limit}, several=True,
    live_migratable=True)
