# SPDX-License-Identifier: Apache-2.0
"""What a machine has, as its libvirt, its QEMUs and its guests show it."""

import collections
import dataclasses
import json
import pathlib
import shlex

from tests.integration.machine import guest as events
from tests.integration.machine import root
from tests.integration.nested import guest as guests

_LOOK = pathlib.Path(__file__).with_name('look.py')
#: virDomainState of libvirt.
_STATES = {1: 'running', 3: 'paused'}


@dataclasses.dataclass(frozen=True)
class Domain:
    """A domain.

    :param state: ``running``, ``paused`` or ``off``
    :param hostdevs: PCI addresses and mdev UUIDs
    """

    state: str
    hostdevs: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Sight:
    """A machine at one moment.

    :param domains: the domains by server
    :param opened: the servers whose QEMU has a device open, by device
    :param cards: the PF of each VF and mdev
    :param read: what guests read of their devices' scratch registers before
        they wrote them, as (server, device in the guest, value)
    :param up: the servers whose guests are up
    """

    domains: dict[str, Domain]
    opened: dict[str, list[str]]
    cards: dict[str, str]
    read: frozenset[tuple[str, str, int]] = frozenset()
    up: frozenset[str] = frozenset()

    def cards_of(self, devices) -> collections.Counter:
        """Return how many of the devices each card has."""
        return collections.Counter(self.cards.get(device, device)
                                   for device in devices)

    def opened_by(self, server: str) -> list[str]:
        return sorted(device for device, servers in self.opened.items()
                      if server in servers)


def look(machine) -> Sight:
    """Look at a machine.

    :param machine: tests.integration.machine.machine.Machine
    :raises Failure: if the machine or its libvirt does not answer
    """
    said = json.loads(machine.run(
        f'{root.NOVA}/bin/python -c {shlex.quote(_LOOK.read_text())}'))
    opened = collections.defaultdict(list)
    for server, devices in said['opened']:
        for device in devices:
            opened[device].append(server)
    consoles = said['consoles']
    return Sight(
        {uuid: Domain(_STATES.get(domain['state'], 'off'),
                      tuple(domain['hostdevs']))
         for uuid, domain in said['domains'].items()},
        dict(opened), said['cards'],
        frozenset(reading for uuid, text in consoles.items()
                  for reading in _read(uuid, text)),
        frozenset(uuid for uuid, text in consoles.items()
                  if guests.Guest(text).is_ready))


def _read(server, console):
    for event in events.events(console):
        if event['event'] == 'accelerator':
            yield server, event['address'], int(event['before'], 16)
