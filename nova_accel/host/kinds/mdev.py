# SPDX-License-Identifier: Apache-2.0
"""Mediated devices: made when a guest needs them, removed when none does.

An entry names parents and a type, and the parents stay with the host. Where a
card can only make mdevs of one type at a time, its driver says so in
``available_instances`` of the others.

Source: Documentation/ABI/testing/sysfs-bus-vfio-mdev.
"""

import collections.abc

import os_resource_classes as orc

from nova_accel.core import errors
from nova_accel.core import hostdev
from nova_accel.core import kind
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.placement import inventory
from nova_accel.host import operations
from nova_accel.host import tree as trees

TYPE = 'mdev_type'

#: What Nova's XML says that an mdev is to a guest.
API = 'vfio-pci'

# No driver has room for more: a larger number is an errno, as a rule.
_MAX = 65536


class Mdevs:
    """Enumerator, Preparer and Inspector."""

    def __init__(self, tree: trees.Tree):
        self._tree = tree

    def pools(self, function: model.Function, entry: kind.Entry,
              machine: kind.Machine) -> collections.abc.Iterator[kind.Pool]:
        wanted = entry.setting(TYPE)
        mdev_type = next((mdev_type for mdev_type in function.mdev_types
                          if mdev_type.name == wanted), None)
        if mdev_type is None:
            has = ', '.join(mdev_type.name
                            for mdev_type in function.mdev_types)
            raise kind.Refused(
                f'it has no mdev type {wanted}'
                + (f', but {has}' if has else ''),
                '' if has else 'load the driver that makes mdevs of it')
        if mdev_type.api not in ('', API):
            raise kind.Refused(
                f'mdevs of its type {wanted} are {errors.plain(mdev_type.api)}'
                f', and a guest can only have {API}', 'take it out of '
                'device_spec')
        ours = frozenset(map(model.MdevAddress, filter(
            naming.is_mdev_uuid, mdev_type.instances)))
        says = mdev_type.available is not None and mdev_type.available <= _MAX
        total = len(ours) + (mdev_type.available if says else 0)
        yield kind.Pool(((function.address,),) * total, wanted,
                        resource_class=orc.VGPU, mdevs=True, instances=ours,
                        limit=_limit(function, entry, machine))
        if not says:
            raise kind.Refused(f'its mdev type {wanted} ' + (
                'does not say how many more there could be'
                if mdev_type.available is None else
                f'says that there could be {mdev_type.available} more'),
                'look into available_instances of the type, and into the log '
                'of its driver')

    def suggest(self, function: model.Function,
                ) -> collections.abc.Iterator[dict[str, str]]:
        for mdev_type in function.mdev_types:
            yield {TYPE: mdev_type.name}

    def prepare(self, device: hostdev.Hostdev, item: inventory.Offered,
                config: kind.DeviceConfig) -> None:
        """Make an mdev on a parent that has room for it."""
        address = device.address
        if self._exists(address):
            return
        why = 'no parent has room for one more'
        for parent in sorted({unit[0] for unit in item.region.units}):
            try:
                operations.on(self._tree).create_mdev(
                    str(parent), item.region.variant, address.uuid)
            except OSError as error:
                # Full, as a rule; and it can have become so since it was
                # read.
                why = f'{parent}: {error.strerror}'
                continue
            if self._exists(address):
                return
            why = f'{parent}: it was not made'
        raise errors.AssignmentError(
            f'device {item.device.address} ({item.device.ids})',
            f'mdev {address} of type {item.region.variant} cannot be made: '
            f'{why}')

    def prepared(self, host: model.Host) -> set[model.MdevAddress]:
        """The mdevs on a Host's cards that we have made.

        Of whatever type: an entry can have named another one then.
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
        """Whether an mdev has been made, on whatever card."""
        if not isinstance(address, model.MdevAddress):
            return None
        return naming.is_mdev_uuid(address.uuid) and self._exists(address)

    def release(self, address: model.MdevAddress) -> None:
        operations.on(self._tree).remove_mdev(address.uuid)

    def _exists(self, address: model.MdevAddress) -> bool:
        return address.uuid in self._tree.names('sys/bus/mdev/devices')


def _limit(function, entry, machine) -> int | None:
    """How many of an entry's type can be ours: others' count as well."""
    limit = entry.setting(kind.LIMIT)
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


# mdev drivers that cannot migrate say so to QEMU.
KIND = kind.Kind(open=Mdevs, keys={
    TYPE: _read_type, kind.LIMIT: kind.read_limit}, several=True,
    live_migratable=True)
