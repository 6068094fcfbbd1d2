# SPDX-License-Identifier: Apache-2.0
"""A guest as it describes itself on its console."""

import dataclasses

from tests.integration.machine import guest

_MAGIC = '0x43434146'
_WRITTEN = '0xcafe0001'


@dataclasses.dataclass(frozen=True, order=True)
class Accelerator:
    """A device that looks like an accelerator, by its registers.

    :param found: vendor and product as the guest's kernel has found them, in
        configuration space: ``0x10de2330``
    :param ids: the same in its registers
    :param number: of a virtual function, from 1; 0 for none
    :param serial: its card's; of an mdev, the number of its type
    :param before: what somebody had written into it before this guest did
    """

    found: str
    ids: str
    number: int
    serial: int
    before: int = 0


class Guest:
    """What a guest said since it booted, was resumed, or came here.

    :param console: text; libvirt begins a new one each time
    """

    def __init__(self, console: str):
        events = guest.events(console)
        starts = [number for number, event in enumerate(events)
                  if event['event'] == 'start']
        self._events = events[starts[-1] if starts else 0:]

    @property
    def boot(self) -> str:
        """The kernel's name for this boot."""
        return next((event['boot'] for event in self._events
                     if 'boot' in event), '')

    @property
    def is_ready(self) -> bool:
        return bool(self._all('ready') or self._all('alive'))

    @property
    def alive(self) -> int:
        """It counts up as long as it runs."""
        return max((event['count'] for event in self._all('alive')), default=0)

    @property
    def gone(self) -> int:
        """How many functions were taken from it."""
        return len(self._all('gone'))

    @property
    def devices(self) -> list[Accelerator]:
        """The accelerators that it has now, in order."""
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

    def _all(self, name: str) -> list[dict]:
        return [event for event in self._events if event['event'] == name]


def _accelerator(event, found) -> Accelerator:
    assert (event['magic'], event['after']) == (_MAGIC, _WRITTEN), event
    return Accelerator(found, event['ids'], event['function'],
                       int(event['serial'], 16), int(event['before'], 16))
