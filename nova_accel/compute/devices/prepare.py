# SPDX-License-Identifier: Apache-2.0
"""Prepares devices for guests: creates mdevs, programs FPGAs."""

from nova_accel.compute.devices import device_config
from nova_accel.compute.state import local_host
from nova_accel.core import errors
from nova_accel.core import hostdev
from nova_accel.core import kind
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.assignment import present
from nova_accel.core.placement import inventory
from nova_accel.host import loader


class Preparation:
    """Checks and prepares the devices of guests that are about to start.

    :param local_host: reads the devices
    :ivar handed_out: prepared addresses that servers have had since
        nova-compute started, also those that no entry names any more
    """

    def __init__(self, local_host: local_host.LocalHost) -> None:
        self._local_host = local_host
        self.handed_out: set[model.Address] = set()

    def check(self, hostdevs: hostdev.Hostdevs,
              node: inventory.Node) -> None:
        """Check that the devices of a guest that starts again are present.

        :raises errors.AccelError: if one is missing
        """
        host = self._host_of(hostdevs) if hostdevs else None
        if host is not None:
            self._check(hostdevs, inventory.NodeInventory(host, node))

    def prepare(self, hostdevs: hostdev.Hostdevs,
                node: inventory.Node,
                configs: device_config.DeviceConfigs,
                host: model.Host | None = None) -> None:
        """Prepare the devices of a guest that is about to start.

        :param configs: the device configs that the server requests
        :param host: the Host, if it has just been read
        :raises errors.AccelError: if a device cannot be prepared, or is
            missing
        """
        self._local_host.resets.used(device.address for device in hostdevs)
        host = host or self._host_of(hostdevs)
        if host is None:
            return
        here = inventory.NodeInventory(host, node)
        self.handed_out.update(device.address for device in hostdevs
                               if self._is_prepared(device, here))
        self._check(hostdevs, here)
        for device in hostdevs:
            group, item = device.group, _item(device, here)
            if item is None:
                _check_not_withheld(device, host, configs.image(group))
                continue
            _check_kind(item, host, configs, group)
            preparer = self._local_host.preparers().get(item.region.kind)
            if preparer and not _is_programmed(preparer, device, item, configs,
                                               group):
                try:
                    preparer.prepare(device, item, configs.build(
                        group, _affected(item, host)))
                finally:
                    self._local_host.invalidate()

    def _check(self, hostdevs, here) -> None:
        """Check that each device is present, or can be prepared.

        :raises errors.AssignmentError: which names the device
        """
        _check_present(hostdevs, here)
        for device in hostdevs:
            if (self._is_prepared(device, here)
                    and _item(device, here) is None
                    and any(inspector.is_ready(device.address) is False
                            for inspector in self._inspectors())):
                raise errors.AssignmentError(
                    f'device {device.address}', 'is no longer what the server '
                    'had, and no entry names what it was',
                    'restore the entry')

    def _is_prepared(self, device, here) -> bool:
        """Whether a device has to be prepared, as far as nova.conf tells."""
        item = _item(device, here)
        if item is not None:
            return item.region.kind in self._local_host.preparers()
        return (isinstance(device.address, model.MdevAddress)
                or naming.is_of_variant(device.alias, '') is not None)

    def _inspectors(self) -> list[kind.Inspector]:
        return [preparer for preparer in self._local_host.preparers().values()
                if isinstance(preparer, kind.Inspector)]

    def _host_of(self, hostdevs) -> model.Host | None:
        """Return the Host of these devices.

        :returns: None if it cannot be read, and all devices are PCI functions
        :raises errors.TreeError: if it cannot be read, and one is an mdev
        """
        try:
            return self.cached_for(hostdevs) or self._local_host.read()
        except errors.TreeError:
            if any(isinstance(device.address, model.MdevAddress)
                   for device in hostdevs):
                raise
            # libvirt can start a guest with PCI functions without our help.
            return None

    def cached_for(self, hostdevs) -> model.Host | None:
        """Return the cached Host if none of these devices is ever prepared."""
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
        """Return what a kind has prepared, even if no entry names it now."""
        ready = set(preparer.prepared(host))
        if isinstance(preparer, kind.Inspector):
            ready.update(filter(preparer.is_ready, tuple(self.handed_out)))
        return ready


def _is_programmed(preparer, device, item, configs, group) -> bool:
    """Whether a device has its bitstream, so that none has to be fetched."""
    image = configs.image(group)
    return bool(image) and isinstance(preparer, kind.Programmer) and (
        preparer.is_programmed(device, item, image, configs.project))


def _item(device, here) -> inventory.Offered | None:
    return here.find_by_alias(device.alias, device.address)


def _check_present(hostdevs, here) -> None:
    """Check that each device is present, or an entry can create it.

    :raises errors.AssignmentError: which names the device
    """
    present.check({device.address: device.ids
                   for device in hostdevs}, here.host)
    for device in hostdevs:
        # A server keeps a device that no entry names any more.
        if not (here.host.has(device.address) or _item(device, here)):
            raise errors.AssignmentError(
                f'device {device.address}', 'is not present, and no entry '
                'names a device from which it can be created')


def _affected(item, host) -> set[model.Address]:
    """Return the devices that change when a Region is programmed.

    For a Region without a variant, these are all functions of its card, also
    those that are not offered.
    """
    units = {address for unit in item.region.units for address in unit}
    if item.region.variant:
        return units
    return units | {function.address for function in host.functions
                    if item.device.address in (function.address,
                                               function.physfn)}


def _check_kind(item, host, configs, group) -> None:
    """Check that a device can be programmed, if the server requests it.

    :raises errors.AssignmentError: if it cannot, or may not be shared
    """
    thing = f'device {item.device.address} ({item.device.ids})'
    if loader.load()[item.region.kind].programs:
        configs.check_strangers(thing, _affected(item, host))
    elif configs.image(group):
        raise errors.AssignmentError(
            thing, f'is of kind {item.region.kind}, which cannot be '
            'programmed', 'let the profile request FPGAs by resource class '
            'or trait')


def _check_not_withheld(device, host, image: str | None) -> None:
    """Check that a device to be programmed is offered."""
    refusal = next((refusal for refusal in host.refusals
                    if refusal.address == device.address), None)
    if refusal and image:
        raise errors.AssignmentError(
            f'device {refusal.address} ({refusal.ids})',
            f'cannot be programmed: {refusal.reason}', refusal.remedy)
