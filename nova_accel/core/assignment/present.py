# SPDX-License-Identifier: Apache-2.0
"""Whether the devices that a server had are present and not in use."""

import collections.abc

from nova_accel.core import errors
from nova_accel.core import model


def check(had: collections.abc.Mapping[model.Address, str],
          host: model.Host) -> None:
    """Check that a guest can start with the devices that it had.

    Entries are not checked: a server keeps a device that an entry once named.

    :param had: expected vendor and product id by address, '' for any
    :raises errors.AssignmentError: if a function is missing, another one is
        at its address, or the host or others use it
    """
    functions = {function.address: function for function in host.functions}
    for address, ids in had.items():
        if not isinstance(address, model.MdevAddress):
            function = _find(address, ids, functions)
            _check_iommu_group(function, had, host)
            _check_unused(function, host)


def _find(address: model.Address, ids: str,
          functions: model.Functions) -> model.Function:
    """Return a function that exists and has the expected ids."""
    function = functions.get(address)
    if function is None:
        raise errors.AssignmentError(
            f'device {address}', 'is not there any more',
            'put the card back where it was, or move the server')
    if ids not in ('', function.ids):
        # Addresses change when cards are added.
        raise errors.AssignmentError(
            f'device {address}', f'is {function.ids} now, the server had '
            f'{ids}', 'put the card back where it was, or move the server')
    return function


def _check_iommu_group(function: model.Function,
                       had: collections.abc.Container[model.Address],
                       host: model.Host) -> None:
    """Check that the server has all functions of an IOMMU group."""
    group = function.iommu_group
    others = [str(other.address) for other in host.functions
              if group is not None and other.iommu_group == group
              and not other.ignored_by_vfio and other.address not in had]
    if others:
        raise errors.AssignmentError(
            f'device {function.address}', f'IOMMU group {group} has '
            f'{" and ".join(others)} by now, which the server does not '
            'have', 'put back the kernel command line and the firmware '
            'settings that keep them apart, or move the server')


def _check_unused(function: model.Function, host: model.Host) -> None:
    """Check that no other server and not the host use a function."""
    vfs = sum(other.physfn == function.address for other in host.functions)
    mdevs = sum(len(mdev_type.instances)
                for mdev_type in function.mdev_types)
    if vfs or mdevs:
        # They disappear when the driver is unbound, even if they are in use.
        raise errors.AssignmentError(
            f'device {function.address}',
            f'has {errors.count(vfs, "virtual function")} and '
            f'{errors.count(mdevs, "mdev")} by now, which other servers may '
            'hold',
            'remove them, or move the server')
    if function.use:
        raise errors.AssignmentError(
            f'device {function.address}', f'the host uses it: {function.use}',
            'stop its use on the host and prevent that it is used again, or '
            'move the server')
