# SPDX-License-Identifier: Apache-2.0
"""Devices go to a server, and from it to the next."""

import pytest

from tests.integration.nested import card as cards
from tests.integration.nested import patience

H100 = '0x10de2330'
ALVEO = '0x10ee5000'


def drivers(inside, held):
    """Who has functions of the machine's now."""
    functions, _mdevs = inside.look()
    return {functions[address].driver for address in held}


def refused(tenant, host, **resources):
    """A server that finds no room."""
    server = tenant.boot(host, 'ERROR', **resources)
    assert 'No valid host' in server.view.fault['message']
    assert tenant.ledger.promised(server.id, host) == ({}, {})
    server.delete()


@pytest.mark.smoke
def test_whole_card_of_a_driver_of_the_hosts(tenant, machine, inside):
    address, card = inside.find(H100), cards.Card(machine, 'h100')
    assert drivers(inside, [address]) == {'nvidia'}
    first = tenant.boot_by_hand(machine.host, CUSTOM_GPU=1)
    assert first.has(CUSTOM_GPU=1) == [address]
    assert card.scratch == card.WRITTEN
    refused(tenant, machine.host, CUSTOM_GPU=1)
    first.delete()
    patience.becomes('who has the card', lambda: drivers(inside, [address]),
                     {'nvidia'})
    second = tenant.boot(machine.host, CUSTOM_GPU=1)
    # It says that there was nothing in its registers.
    assert second.has(CUSTOM_GPU=1) == [address]
    second.delete()


def test_whole_card_without_a_driver(tenant, machine, inside):
    address, card = inside.find(ALVEO), cards.Card(machine, 'u250')
    server = tenant.boot(machine.host, CUSTOM_ALVEO=1)
    assert server.has(CUSTOM_ALVEO=1) == [address]
    assert card.scratch == card.WRITTEN
    server.delete()
    # It is not left for the next server to be reset.
    patience.becomes('what is in the card', lambda: card.scratch, 0)
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
    patience.becomes('which mdevs there are', lambda: inside.look()[1], {})


def test_several_kinds_at_once(tenant, machine, inside):
    everything = {'CUSTOM_GPU': 1, 'CUSTOM_ALVEO': 1, 'CUSTOM_QAT': 2,
                  'VGPU': 2}
    server = tenant.boot(machine.host, **everything)
    held = server.has(**everything)
    assert len(held) == 6
    server.delete()
    patience.becomes('who has them', lambda: drivers(
        inside, [address for address in held if ':' in address]),
        {'nvidia', ''})
    server = tenant.boot(machine.host, **everything)
    server.has(**everything)
    server.delete()
