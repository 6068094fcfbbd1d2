# SPDX-License-Identifier: Apache-2.0
"""Devices made ready for guests."""

from nova_accel.compute.devices import device_config
from nova_accel.compute.state import local_host
from nova_accel.core import errors
from nova_accel.core import hostdev
from nova_accel.core import kind
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.assignment import assign
from nova_accel.core.placement import inventory
from nova_accel.host import loader


class Preparation:
    """What guests are to start with, checked and made ready.

    :param machine: whose devices they are
    :ivar given: what servers had since nova-compute runs that was made for
        them, whether an entry names it or not
    """

    def __init__(self, local_host: local_host.LocalHost) -> None:
        self._local_host = local_host
        self.given: set[model.Address] = set()

    def check(self, hostdevs: hostdev.Hostdevs,
              node: inventory.Node) -> None:
        """Make sure that what a guest is to start with again is there.

        :raises errors.AccelError: if not
        """
        host = self._host_of(hostdevs) if hostdevs else None
        if host is not None:
            self._check(hostdevs, inventory.NodeInventory(host, node))

    def prepare(self, hostdevs: hostdev.Hostdevs,
                node: inventory.Node,
                configs: device_config.DeviceConfigs,
                host: model.Host | None = None) -> None:
        """Make ready what a guest is to start with.

        :param host: the machine, if it has just been read
        :param configs: what the server asks of its devices
        :raises errors.AccelError: if something cannot be made ready, or is not
            there
        """
        self._local_host.resets.used(device.address for device in hostdevs)
        host = host or self._host_of(hostdevs)
        if host is None:
            return
        here = inventory.NodeInventory(host, node)
        self.given.update(device.address for device in hostdevs
                          if self._is_made(device, here))
        self._check(hostdevs, here)
        for device in hostdevs:
            group, _provider = naming.parse_alias(device.alias)
            item = _item(device, here)
            if item is None:
                _check_not_withheld(device, host, configs.image(group))
                continue
            _check_kind(item, configs.image(group))
            preparer = self._local_host.preparers().get(item.region.kind)
            if preparer:
                try:
                    preparer.prepare(device, item, configs.build(
                        group, _affected(item, host)))
                finally:
                    self._local_host.invalidate()

    def _check(self, hostdevs, here) -> None:
        """Check that nothing is missing that nobody can make.

        :raises errors.AssignmentError: naming it
        """
        _check_there(hostdevs, here)
        for device in hostdevs:
            if (self._is_made(device, here)
                    and _item(device, here) is None
                    and any(inspector.is_ready(device.address) is False
                            for inspector in self._inspectors())):
                raise errors.AssignmentError(
                    f'device {device.address}', 'it is not what the server '
                    'had any more, and no entry names what that was',
                    'put the entry back as it was')

    def _is_made(self, device, here) -> bool:
        """Whether it was made what it is, as far as nova.conf still says."""
        item = _item(device, here)
        if item is not None:
            return item.region.kind in self._local_host.preparers()
        return (isinstance(device.address, model.MdevAddress)
                or naming.is_of_variant(device.alias, '') is not None)

    def _inspectors(self) -> list[kind.Inspector]:
        return [preparer for preparer in self._local_host.preparers().values()
                if isinstance(preparer, kind.Inspector)]

    def _host_of(self, hostdevs) -> model.Host | None:
        """The Host that these are of; None if they do without.

        :raises errors.TreeError: if nobody knows whether they are there
        """
        try:
            return self.cached_for(hostdevs) or self._local_host.read()
        except errors.TreeError:
            if any(isinstance(device.address, model.MdevAddress)
                   for device in hostdevs):
                raise
            # Functions are there without us.
            return None

    def cached_for(self, hostdevs) -> model.Host | None:
        """The Host a moment ago, if that does: nothing makes these ready."""
        host = self._local_host.cached()
        if not host:
            return None
        plain = {address for device in host.devices
                 for region in device.regions for unit in region.units
                 for address in unit
                 if region.kind not in self._local_host.preparers()}
        return host if plain.issuperset(
            device.address for device in hostdevs) else None

    def ready(self, preparer, host) -> set[model.Address]:
        """What a kind has made ready, also what no entry names any more."""
        ready = set(preparer.prepared(host))
        if isinstance(preparer, kind.Inspector):
            ready.update(filter(preparer.is_ready, tuple(self.given)))
        return ready


def _item(device, here) -> inventory.Offered | None:
    return here.find_by_alias(device.alias, device.address)


def _check_there(hostdevs, here) -> None:
    """Check that a guest can have what it is to have.

    :raises errors.AssignmentError: if it is not there, and cannot be made
    """
    assign.check_there({device.address: device.ids
                        for device in hostdevs}, here.host)
    for device in hostdevs:
        # What an entry named once, a server keeps, if it is there.
        if not (here.host.has(device.address) or _item(device, here)):
            raise errors.AssignmentError(
                f'device {device.address}', 'it is not there, and no entry '
                'names what it could be made of')


def _affected(item, host) -> set[model.Address]:
    """The devices that change when something is done to a Region.

    Where it is all that its card has to give away, these are all functions of
    the card, whoever gives them away.
    """
    units = {address for unit in item.region.units for address in unit}
    if item.region.variant:
        return units
    return units | {function.address for function in host.functions
                    if item.device.address in (function.address,
                                               function.physfn)}


def _check_kind(item, image: str | None) -> None:
    """Check that a device can be programmed, if the server asks for it."""
    if image and not loader.load()[item.region.kind].programs:
        raise errors.AssignmentError(
            f'device {item.device.address} ({item.device.ids})',
            f'is of kind {item.region.kind}, into which nothing can be '
            'programmed', 'have the profile ask for FPGAs by class or trait')


def _check_not_withheld(device, host, image: str | None) -> None:
    """Check that a device to be programmed is offered."""
    refusal = next((refusal for refusal in host.refusals
                    if refusal.address == device.address), None)
    if refusal and image:
        raise errors.AssignmentError(
            f'device {refusal.address} ({refusal.ids})',
            f'cannot be programmed: {refusal.reason}', refusal.remedy)
