# SPDX-License-Identifier: Apache-2.0
"""Nobody gets a device with what somebody else has left in it."""

import pytest

from tests.integration.nested import card as cards
from tests.integration.nested import patience
from tests.integration.nested import scene

U250 = '0x10ee5000'
# Nothing resets it.
U200 = '0x10ee5004'
ENTRY = ('device_spec = {{"vendor_id": "10ee", "product_id": "5004", '
         '"resource_class": "CUSTOM_OLD"{more}}}\n')


@pytest.fixture
def offer(tenant, machine):
    """Offer more, until the end."""
    yield lambda more: scene.offer(tenant, machine, more)
    scene.offer(tenant, machine)


@pytest.fixture
def said(machine):
    """Whether nova-compute has said something since the test began."""
    log = machine.log('nova-compute')
    begin = log.stat().st_size

    def said(text):
        with log.open('rb') as file:
            file.seek(begin)
            return text in file.read().decode(errors='replace')
    return said


def test_what_cannot_be_reset(tenant, machine, inside, offer, said):
    address, card = inside.find(U200), cards.Card(machine, 'u200')
    offer(ENTRY.format(more=''))
    patience.until('nova-compute says why it does not offer it', lambda: said(
        f'Not offered: {address} (10ee:5004): it cannot be reset by itself'))
    assert tenant.ledger.device(machine.host, address) is None
    offer(ENTRY.format(more=', "reset": "if_possible"'))
    patience.until('it is offered all the same', lambda: tenant.ledger.device(
        machine.host, address))
    assert said(f'{address} (10ee:5004): cannot be reset by itself, and is '
                'offered as [nova_accel] device_spec #5 says')
    first = tenant.boot(machine.host, CUSTOM_OLD=1)
    assert first.has(CUSTOM_OLD=1) == [address]
    first.delete()
    # Here, and here only, the next one finds what the last one has left.
    second = tenant.boot(machine.host, CUSTOM_OLD=1)
    assert [device.before for device in second.guest().devices] == [
        card.WRITTEN]
    second.delete()


def test_reset_that_fails(tenant, machine, inside, said):
    """The kernel waits a minute for a card that does not answer again."""
    address, card = inside.find(U250), cards.Card(machine, 'u250')
    # And another for each other way.
    machine.run(f'echo flr > /sys/bus/pci/devices/{address}/reset_method')
    server = tenant.boot(machine.host, CUSTOM_ALVEO=1)
    server.has(CUSTOM_ALVEO=1)
    card.stick(True)
    server.delete()
    patience.until('nova-compute has tried to reset it', lambda: said(
        f'Not offered: {address} (10ee:5000): its reset failed: '
        'Inappropriate ioctl for device; the reset is tried again'))
    patience.becomes('what is reserved', lambda: tenant.ledger.device(
        machine.host, address).reserved, 1)
    other = tenant.boot(machine.host, 'ERROR', CUSTOM_ALVEO=1)
    other.delete()
    card.stick(False)
    # Now it can be reset, and could not be used: it does not know any more
    # where its registers are.
    patience.until('nova-compute has looked at it', lambda: said(
        f'its reset failed: device {address}: its BARs lost their addresses'))
    machine.run(f'echo 1 > /sys/bus/pci/devices/{address}/remove; '
                'echo 1 > /sys/bus/pci/rescan')
    patience.becomes('what is reserved', lambda: tenant.ledger.device(
        machine.host, address).reserved, 0)
    server = tenant.boot(machine.host, CUSTOM_ALVEO=1)
    assert server.has(CUSTOM_ALVEO=1) == [address]
    server.delete()
