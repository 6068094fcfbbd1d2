# SPDX-License-Identifier: Apache-2.0
"""What is tried with each Region, and what must be true then."""

import dataclasses
import uuid

from nova_accel.core import assignment
from nova_accel.core import hostdev
from nova_accel.core import kind as kinds
from nova_accel.core import model
from nova_accel.core import providers
from nova_accel.host import privileged
from nova_accel.host import reader
from tests.hardware import guest


@dataclasses.dataclass
class Result:
    """:param problem: what was not as it must be, or ''"""

    kind: str
    device: str
    region: str
    units: int
    given: list[str]
    problem: str = ''

    @property
    def ok(self) -> bool:
        return not self.problem


class Trials:
    """A unit of each Region, one after the other."""

    def __init__(self, tree, entries, opened):
        # This process is root itself.
        privileged.context.set_client_mode(False)
        self._tree = tree
        self._entries = entries
        self._kinds = opened
        self._root = str(uuid.uuid4())

    def run(self):
        for refusal in self._read().refusals:
            yield Result('', str(refusal.address), '', 0, [], refusal.reason)
        for item in self._offered():
            if item.region.total:
                yield self._try(item)

    def _read(self) -> model.Host:
        return reader.read(self._tree, self._entries, kinds=self._kinds)

    def _offered(self):
        return providers.offered(self._read(), self._root, 'host')

    def _try(self, item) -> Result:
        server = str(uuid.uuid4())
        devices = hostdev.plan(assignment.assign(
            {item.uuid: {item.region.resource_class: 1}}, {}, [item], {},
            server))
        result = Result(item.region.kind, str(item.device.address),
                        item.region.name, item.region.total,
                        [str(device.address) for device in devices])
        before = self._drivers(devices)
        try:
            self._prepare(devices, item)
            with guest.paused(server, devices) as held:
                if set(held) != set(devices):
                    result.problem = f'the guest holds {held}'
            self._release(devices, item)
            if self._drivers(devices) != before:
                result.problem = (f'drivers were {before}, are '
                                  f'{self._drivers(devices)}')
            self._check_offered_again(item)
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
                if device.address not in preparer.prepared(self._read()):
                    raise AssertionError(f'{device.address} is not ready')

    def _release(self, devices, item) -> None:
        if preparer := self._preparer(item):
            ready = preparer.prepared(self._read())
            for device in devices:
                if device.address in ready:
                    preparer.release(device.address)

    def _drivers(self, devices) -> dict[str, str | None]:
        functions = {function.address: function.driver
                     for function in self._read().functions}
        return {str(device.address): functions.get(device.address)
                for device in devices}

    def _check_offered_again(self, item) -> None:
        if item not in self._offered():
            raise AssertionError('it is not offered as it was')
