# SPDX-License-Identifier: Apache-2.0
"""Mediated devices: made when a guest needs them, removed when none does.

Source: Documentation/ABI/testing/sysfs-bus-vfio-mdev.
"""

import collections.abc

from nova_accel.core import errors
from nova_accel.core import identity
from nova_accel.core import model
from nova_accel.host import privileged
from nova_accel.host import tree as trees

DEVICES = 'sys/bus/mdev/devices'


def exists(tree: trees.Tree, address: model.MdevAddress) -> bool:
    return address.uuid in tree.names(DEVICES)


def make(tree: trees.Tree, device: model.Device, region: model.Region,
         address: model.MdevAddress) -> None:
    """Make an mdev on a parent of a Region that has room for it.

    :raises errors.AssignmentError: if none has
    """
    why = 'no parent has room for one more'
    for parent in sorted({unit[0] for unit in region.units}):
        try:
            privileged.create_mdev(_sysfs(tree), str(parent),
                                   region.mdev_type, address.uuid)
        except OSError as error:
            # Full, as a rule; and it can have become so since it was read.
            why = f'{parent}: {error.strerror}'
            continue
        if exists(tree, address):
            return
        why = f'{parent}: it was not made'
    raise errors.AssignmentError(
        f'device {device.address} ({device.ids})',
        f'mdev {address} of type {region.mdev_type} cannot be made: {why}')


def made(host: model.Host) -> set[model.MdevAddress]:
    """The mdevs on a Host's Regions that we have made, whoever has them."""
    types = {(unit[0], region.mdev_type) for device in host.devices
             for region in device.regions if region.mdev_type
             for unit in region.units}
    return {model.MdevAddress(instance)
            for function in host.functions
            for mdev_type in function.mdev_types
            if (function.address, mdev_type.name) in types
            for instance in mdev_type.instances
            if identity.is_mdev_uuid(instance)}


def remove(tree: trees.Tree,
           addresses: collections.abc.Iterable[model.MdevAddress],
           ) -> collections.abc.Iterator[tuple[model.MdevAddress, str]]:
    """Remove mdevs; each with why it could not be, or ''."""
    for address in addresses:
        try:
            privileged.remove_mdev(_sysfs(tree), address.uuid)
            yield address, ''
        except OSError as error:
            yield address, error.strerror


def _sysfs(tree: trees.Tree) -> str:
    if isinstance(tree, trees.Directory):
        return tree.sysfs
    raise errors.AssignmentError(
        'sysfs_root', 'is a recording, in which no mdev can be made')
