# SPDX-License-Identifier: Apache-2.0
"""nova_accel takes over a running server with devices of ``[pci] alias``."""

import collections

import pytest

from tests.integration.nested import card as cards
from tests.integration.nested import patience
from tests.integration.nested import scene

HAS = {'CUSTOM_GPU': 1, 'CUSTOM_ALVEO': 1}


@pytest.fixture
def server(tenant, machine):
    scene.leave_to_nova(tenant, machine, CUSTOM_GPU='2330',
                        CUSTOM_ALVEO='5000')
    server = tenant.boot(machine.host, flavor=tenant.flavor_with(
        'alias', **{'pci_passthrough:alias': 'gpu:1,alveo:1'}))
    yield server
    server.delete()
    scene.offer(tenant, machine)


def test_guest_keeps_running_with_its_devices(
        server, tenant, machine, inside):
    card = cards.Card(machine, 'h100')
    aliases, before = inside.hostdevs(server.id), server.guest()
    resets = card.resets
    assert len(before.devices) == 2

    scene.offer(tenant, machine)
    patience.becomes(
        'allocations of the server',
        lambda: tenant.ledger.promised(server.id, machine.host),
        (collections.Counter(HAS), collections.Counter(aliases.keys())))

    server.lives()
    after = server.guest()
    assert (after.boot, after.gone, after.devices) == (
        before.boot, 0, before.devices)
    assert (card.resets, card.scratch) == (resets, card.WRITTEN)
    assert inside.hostdevs(server.id) == aliases
    defined = inside.hostdevs(server.id, defined=True)
    assert defined.keys() == aliases.keys()
    assert not set(defined.values()) & set(aliases.values())
    assert inside.disagreements() == []

    server.act('reboot_server', 'HARD')
    server.restarted(before.boot)
    assert server.has(**HAS) == sorted(aliases)
