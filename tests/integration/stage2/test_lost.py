# SPDX-License-Identifier: Apache-2.0
"""A device disappears while a guest has it, and comes back."""

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


class Slot:
    """A card's slot, seen from the host, the guest and Placement."""

    def __init__(self, tenant, machine, inside, card):
        self._tenant = tenant
        self._machine = machine
        self._inside = inside
        self._card = card

    def check_empty(self, server):
        """Check that the guest still runs and the provider is reserved.

        A hard reboot puts the server into ERROR.
        """
        patience.becomes('card is on the host', lambda: self._card in
                         self._inside.look()[0], False)
        patience.becomes('devices of the guest',
                         lambda: server.guest().devices, [])
        server.lives()
        patience.becomes('reservation and trait of the provider',
                         self._reserved, (1, True))
        assert (f'device {self._card} of server {server.id}: is not there any '
                'more') in self._inside.disagreements()
        server.act('reboot_server', 'HARD', status='ERROR')
        assert 'is not there any more' in server.view.fault['message']

    def check_card_is_back(self, server):
        """Check that a reboot gives the card back to the server."""
        patience.becomes('reservation and trait of the provider',
                         self._reserved, (0, False))
        server.act('reboot_server', 'HARD', meanwhile=('ERROR',))
        assert server.has(CUSTOM_ALVEO=1) == [self._card]

    def _reserved(self):
        provider = self._tenant.ledger.device(self._machine.host, self._card)
        return provider.reserved, _MISSING in provider.traits


@pytest.fixture
def slot(tenant, machine, inside, card):
    return Slot(tenant, machine, inside, card)


def test_removed_through_sysfs(machine, server, card, slot):
    machine.run(f'echo 1 > /sys/bus/pci/devices/{card}/remove')
    slot.check_empty(server)
    machine.run('echo 1 > /sys/bus/pci/rescan')
    slot.check_card_is_back(server)


def test_unplugged(machine, server, card, slot):
    plugged = cards.Card(machine, 'u250')
    plugged.unplug()
    slot.check_empty(server)
    plugged.plug()
    slot.check_card_is_back(server)
