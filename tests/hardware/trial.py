# SPDX-License-Identifier: Apache-2.0
"""What is tried with each Region, and what must be true then."""

import dataclasses
import uuid

from nova_accel.core import kind as kinds
from nova_accel.core import model
from nova_accel.core.assignment import assign
from nova_accel.core.assignment import assigned_units
from nova_accel.core.device_spec import reset_methods
from nova_accel.core.device_spec import virtual_functions
from nova_accel.core.placement import inventory
from nova_accel.host import privileged
from nova_accel.host import reader
from nova_accel.host import reset
from nova_accel.host import sriov
from tests.hardware import guest


@dataclasses.dataclass
class Result:
    """How it went with a Region.

    :param given: the addresses of the unit
    :param problem: what was not as it must be, or ''
    :param drivers: who has the unit's functions in the end
    """

    kind: str
    device: str
    region: str
    units: int
    given: list[str]
    problem: str = ''
    drivers: list[str] = dataclasses.field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problem


class Trials:
    """A unit of each Region, one after the other."""

    def __init__(self, tree, entries, opened):
        # This process is root itself.
        for context in privileged.CONTEXTS:
            context.set_client_mode(False)
        self._tree = tree
        self._entries = entries
        self._kinds = opened
        self._resets = reset.Resets()
        self._root = str(uuid.uuid4())

    def run(self):
        changes, problems = virtual_functions.plan(self._read().functions,
                                                   self._entries)
        for problem in problems:
            yield Result('', problem.thing, '', 0, [], problem.reason)
        for change in changes:
            sriov.change(self._tree, change)
        for refusal in self._read().refusals:
            yield Result('', str(refusal.address), '', 0, [], refusal.reason)
        for item in self._offered():
            if item.region.total:
                yield self._try(item)

    def _read(self) -> model.Host:
        return reader.read(self._tree, self._entries, kinds=self._kinds)

    def _offered(self):
        return inventory.NodeInventory(self._read(),
                                       inventory.Node(self._root,
                                                      'host')).offered

    def _try(self, item) -> Result:
        server = str(uuid.uuid4())
        devices = assigned_units.to_hostdevs(assign.assign(
            {item.uuid: {item.region.resource_class: 1}}, {}, [item], {},
            server))
        result = Result(item.region.kind, str(item.device.address),
                        item.region.name, item.region.total,
                        [str(device.address) for device in devices])
        try:
            self._reset(devices)
            self._prepare(devices, item)
            with guest.paused(server, devices) as held:
                if _named(held) != _named(devices):
                    result.problem = f'the guest holds {held}'
            self._release(devices, item)
            self._check_offered_again(item)
            result.drivers = self._drivers(devices)
        except Exception as error:
            result.problem = f'{type(error).__name__}: {error}'
            self._release(devices, item)
        return result

    def _preparer(self, item) -> kinds.Preparer | None:
        opened = self._kinds[item.region.kind]
        return opened if isinstance(opened, kinds.Preparer) else None

    def _prepare(self, devices, item) -> None:
        if preparer := self._preparer(item):
            for device in devices:
                preparer.prepare(device, item, {})

    def _release(self, devices, item) -> None:
        if preparer := self._preparer(item):
            ready = preparer.prepared(self._read())
            for device in devices:
                if device.address in ready:
                    preparer.release(device.address)
            if left := preparer.prepared(self._read()):
                raise AssertionError(f'{left} is ready still')

    def _drivers(self, devices) -> list[str]:
        """Who has the functions now."""
        return [function.driver or 'no driver'
                for function in self._read().functions
                for device in devices if function.address == device.address]

    def _reset(self, devices) -> None:
        """As before a server gets what another one may have had."""
        host, wanted = self._read(), {device.address for device in devices}
        for unit in reset_methods.units(host):
            if wanted.intersection(unit) and not self._resets.reset(
                    self._tree, host, unit):
                raise AssertionError(
                    f'not reset: {self._resets.refused()}')

    def _check_offered_again(self, item) -> None:
        now = next((other for other in self._offered()
                    if other.uuid == item.uuid), None)
        if now is None or now.region.total != item.region.total:
            raise AssertionError(f'it is offered as {now}')


def _named(devices) -> set:
    # Of an mdev, libvirt says that it is not managed.
    return {(device.address, device.alias) for device in devices}
