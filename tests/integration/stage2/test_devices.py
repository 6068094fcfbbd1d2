# SPDX-License-Identifier: Apache-2.0
"""Devices of each kind go to a server, then to the next one."""

import pytest

from tests.integration.nested import card as cards
from tests.integration.nested import patience

H100 = '0x10de2330'
ALVEO = '0x10ee5000'


def drivers(inside, held):
    """Return the host drivers that are bound to these functions."""
    functions, _mdevs = inside.look()
    return {functions[address].driver for address in held}


def refused(tenant, host, **resources):
    """Create a server that gets no valid host and no allocations."""
    server = tenant.boot(host, 'ERROR', **resources)
    assert 'No valid host' in server.view.fault['message']
    assert tenant.ledger.promised(server.id, host) == ({}, {})
    server.delete()


@pytest.mark.smoke
def test_whole_card_with_host_driver(tenant, machine, inside):
    address, card = inside.find(H100), cards.Card(machine, 'h100')
    assert drivers(inside, [address]) == {'nvidia'}
    first = tenant.boot_by_hand(machine.host, CUSTOM_GPU=1)
    assert first.has(CUSTOM_GPU=1) == [address]
    assert card.scratch == card.WRITTEN
    refused(tenant, machine.host, CUSTOM_GPU=1)
    first.delete()
    patience.becomes('driver of the card', lambda: drivers(inside, [address]),
                     {'nvidia'})
    second = tenant.boot(machine.host, CUSTOM_GPU=1)
    # has() also checks that the guest found cleared registers.
    assert second.has(CUSTOM_GPU=1) == [address]
    second.delete()


def test_whole_card_without_a_driver(tenant, machine, inside):
    address, card = inside.find(ALVEO), cards.Card(machine, 'u250')
    server = tenant.boot(machine.host, CUSTOM_ALVEO=1)
    assert server.has(CUSTOM_ALVEO=1) == [address]
    assert card.scratch == card.WRITTEN
    server.delete()
    # The delete resets the card. The next server's creation does so again.
    patience.becomes('scratch register', lambda: card.scratch, 0)
    before = card.resets
    server = tenant.boot(machine.host, CUSTOM_ALVEO=1)
    assert server.has(CUSTOM_ALVEO=1) == [address]
    assert card.resets > before
    server.delete()


def test_virtual_functions_of_one_pool(tenant, machine):
    first = tenant.boot(machine.host, CUSTOM_QAT=2)
    second = tenant.boot(machine.host, CUSTOM_QAT=2)
    held = first.has(CUSTOM_QAT=2) + second.has(CUSTOM_QAT=2)
    assert len(set(held)) == 4
    refused(tenant, machine.host, CUSTOM_QAT=1)
    first.delete()
    second.delete()
    third = tenant.boot(machine.host, CUSTOM_QAT=4)
    assert third.has(CUSTOM_QAT=4) == sorted(held)
    third.delete()


def test_mdevs(tenant, machine, inside):
    server = tenant.boot(machine.host, VGPU=2)
    held = server.has(VGPU=2)
    assert set(inside.look()[1]) == set(held)
    server.delete()
    patience.becomes('mdevs of the host', lambda: inside.look()[1], {})


def test_several_kinds_at_once(tenant, machine, inside):
    everything = {'CUSTOM_GPU': 1, 'CUSTOM_ALVEO': 1, 'CUSTOM_QAT': 2,
                  'VGPU': 2}
    server = tenant.boot(machine.host, **everything)
    held = server.has(**everything)
    assert len(held) == 6
    server.delete()
    patience.becomes('drivers of the devices', lambda: drivers(
        inside, [address for address in held if ':' in address]),
        {'nvidia', ''})
    server = tenant.boot(machine.host, **everything)
    server.has(**everything)
    server.delete()
