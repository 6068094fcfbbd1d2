# SPDX-License-Identifier: Apache-2.0
"""A device goes away while a guest has it, and comes back."""

import pytest

from tests.integration.nested import card as cards
from tests.integration.nested import patience

ALVEO = '0x10ee5000'
_MISSING = 'CUSTOM_NOVA_ACCEL_MISSING'


@pytest.fixture
def card(inside):
    return inside.find(ALVEO)


@pytest.fixture
def server(tenant, machine):
    server = tenant.boot(machine.host, CUSTOM_ALVEO=1)
    server.has(CUSTOM_ALVEO=1)
    yield server
    server.delete()


class Place:
    """A place for a card, as everybody sees it."""

    def __init__(self, tenant, machine, inside, card):
        self._tenant = tenant
        self._machine = machine
        self._inside = inside
        self._card = card

    def is_empty(self, server):
        """The guest lives on without it, and nobody is promised it."""
        patience.becomes('whether it is there', lambda: self._card in
                         self._inside.look()[0], False)
        patience.becomes('what the guest has',
                         lambda: server.guest().devices, [])
        server.lives()
        patience.becomes('why its provider is reserved', self._reason,
                         (1, True))
        assert (f'device {self._card} of server {server.id}: is not there any '
                'more') in self._inside.disagreements()
        server.act('reboot_server', 'HARD', status='ERROR')
        assert 'is not there any more' in server.view.fault['message']

    def is_taken_again(self, server):
        """The server had it all along, and a reboot lets its guest know."""
        patience.becomes('why its provider is reserved', self._reason,
                         (0, False))
        server.act('reboot_server', 'HARD', meanwhile=('ERROR',))
        assert server.has(CUSTOM_ALVEO=1) == [self._card]

    def _reason(self):
        provider = self._tenant.ledger.device(self._machine.host, self._card)
        return provider.reserved, _MISSING in provider.traits


@pytest.fixture
def place(tenant, machine, inside, card):
    return Place(tenant, machine, inside, card)


def test_removed_by_hand(machine, server, card, place):
    machine.run(f'echo 1 > /sys/bus/pci/devices/{card}/remove')
    place.is_empty(server)
    machine.run('echo 1 > /sys/bus/pci/rescan')
    place.is_taken_again(server)


def test_unplugged(machine, server, card, place):
    plugged = cards.Card(machine, 'u250')
    plugged.unplug()
    place.is_empty(server)
    plugged.plug()
    place.is_taken_again(server)
