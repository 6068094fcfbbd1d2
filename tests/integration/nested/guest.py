# SPDX-License-Identifier: Apache-2.0
"""A guest's state, parsed from the events on its console."""

import base64
import dataclasses
import json

from tests.integration.machine import guest

_MAGIC = '0x43434146'
_WRITTEN = '0xcafe0001'


@dataclasses.dataclass(frozen=True, order=True)
class Accelerator:
    """An emulated accelerator as the guest sees it.

    :param found: vendor and product id in configuration space, for example
        ``0x10de2330``
    :param ids: the same ids in the device's registers
    :param number: the number of a VF, from 1; otherwise 0
    :param serial: the card's serial number; for an mdev, the number of its
        type
    :param before: the scratch register's value before this guest wrote it
    :param logic: the same for the word in the logic of an FPGA
    """

    found: str
    ids: str
    number: int
    serial: int
    before: int = 0
    logic: int = 0


@dataclasses.dataclass(frozen=True)
class Disk:
    """An NVMe disk as the guest found it.

    :param blocks: how many blocks this guest has written
    :param before: how many of them a guest had written before
    """

    blocks: int
    before: int


class Guest:
    """A guest's events since it booted, was resumed, or migrated here.

    :param console: the text of the console; libvirt starts a new one each time
    """

    def __init__(self, console: str):
        events = guest.events(console)
        starts = [number for number, event in enumerate(events)
                  if event['event'] == 'start']
        self._events = events[starts[-1] if starts else 0:]

    @property
    def boot(self) -> str:
        """The kernel's boot id."""
        return next((event['boot'] for event in self._events
                     if 'boot' in event), '')

    @property
    def is_ready(self) -> bool:
        return bool(self._all('ready') or self._all('alive'))

    @property
    def alive(self) -> int:
        """A counter that increases while the guest runs."""
        return max((event['count'] for event in self._all('alive')), default=0)

    @property
    def gone(self) -> int:
        """How many PCI functions were removed from the guest."""
        return len(self._all('gone'))

    @property
    def devices(self) -> list[Accelerator]:
        """The accelerators that the guest has now, sorted."""
        ids: dict[str, str] = {}
        found: dict[str, Accelerator] = {}
        for event in self._events:
            if event['event'] == 'gone':
                found.pop(event['address'], None)
            elif event['event'] == 'there':
                ids[event['address']] = event['vendor'] + event['device'][2:]
            elif event['event'] == 'accelerator':
                found[event['address']] = _accelerator(
                    event, ids.get(event['address'], ''))
        return sorted(found.values())

    @property
    def disks(self) -> list[Disk]:
        """The NVMe disks that the guest has found, as it found them."""
        return [Disk(event['blocks'], event['before'])
                for event in self._all('disk')]

    @property
    def document(self) -> dict | None:
        """The document of nova-accel that the guest has, None without one."""
        parts = [event['text'] for event in self._all('document')]
        return json.loads(base64.b64decode(''.join(parts))) if parts else None

    @property
    def places(self) -> dict[str, tuple[str, int]]:
        """Path and NUMA node of each PCI function, by its address.

        The path is as in the document, ``c8/00.0/00.0``.
        """
        found = {}
        for event in self._events:
            if event['event'] == 'gone':
                found.pop(event['address'], None)
            elif event['event'] == 'there':
                root, *steps = event['path'].removeprefix(
                    '/sys/devices/pci0000:').split('/')
                found[event['address']] = '/'.join([root, *(
                    step.rpartition(':')[2] for step in steps)]), event['numa']
        return found

    def _all(self, name: str) -> list[dict]:
        return [event for event in self._events if event['event'] == name]


def _accelerator(event, found) -> Accelerator:
    assert (event['magic'], event['after']) == (_MAGIC, _WRITTEN), event
    return Accelerator(found, event['ids'], event['function'],
                       int(event['serial'], 16), int(event['before'], 16),
                       int(event['logic'], 16))
