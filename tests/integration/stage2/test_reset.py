# SPDX-License-Identifier: Apache-2.0
"""A server does not get a device that still has another server's data."""

import pytest

from tests.integration.nested import card as cards
from tests.integration.nested import patience
from tests.integration.nested import scene

U250 = '0x10ee5000'
# This card cannot be reset.
U200 = '0x10ee5004'
ENTRY = ('device_spec = {{"vendor_id": "10ee", "product_id": "5004", '
         '"resource_class": "CUSTOM_OLD"{more}}}\n')


@pytest.fixture
def offer(tenant, machine):
    """Return a function that offers more devices until the test ends."""
    yield lambda more: scene.offer(tenant, machine, more)
    scene.offer(tenant, machine)


@pytest.fixture
def said(machine):
    """Return a function that searches nova-compute's log of this test."""
    log = machine.log('nova-compute')
    begin = log.stat().st_size

    def said(text):
        with log.open('rb') as file:
            file.seek(begin)
            return text in file.read().decode(errors='replace')
    return said


def test_device_that_cannot_be_reset(tenant, machine, inside, offer, said):
    address, card = inside.find(U200), cards.Card(machine, 'u200')
    offer(ENTRY.format(more=''))
    patience.until('nova-compute logs why it does not offer it', lambda: said(
        f'Not offered: {address} (10ee:5004): it cannot be reset by itself'))
    assert tenant.ledger.device(machine.host, address) is None
    offer(ENTRY.format(more=', "reset": "if_possible"'))
    patience.until('it is offered nevertheless', lambda: tenant.ledger.device(
        machine.host, address))
    assert said(f'{address} (10ee:5004): cannot be reset by itself, and is '
                'offered as [nova_accel] device_spec #5 says')
    first = tenant.boot(machine.host, CUSTOM_OLD=1)
    assert first.has(CUSTOM_OLD=1) == [address]
    first.delete()
    # With this option the next server finds the first server's data.
    second = tenant.boot(machine.host, CUSTOM_OLD=1)
    assert [device.before for device in second.guest().devices] == [
        card.WRITTEN]
    second.delete()


def test_reset_that_fails(tenant, machine, inside, said):
    """A device whose reset fails is reserved until a reset succeeds."""
    address, card = inside.find(U250), cards.Card(machine, 'u250')
    # For each reset method the kernel waits a minute for the card's answer.
    machine.run(f'echo flr > /sys/bus/pci/devices/{address}/reset_method')
    server = tenant.boot(machine.host, CUSTOM_ALVEO=1)
    server.has(CUSTOM_ALVEO=1)
    card.stick(True)
    server.delete()
    patience.until('nova-compute has tried to reset it', lambda: said(
        f'Not offered: {address} (10ee:5000): its reset failed: '
        'Inappropriate ioctl for device; the reset is tried again'))
    patience.becomes('reserved units', lambda: tenant.ledger.device(
        machine.host, address).reserved, 1)
    other = tenant.boot(machine.host, 'ERROR', CUSTOM_ALVEO=1)
    other.delete()
    card.stick(False)
    # Now the reset works, but the failed one has cleared the card's BARs. So
    # the card is still unusable.
    patience.until('nova-compute has checked the device', lambda: said(
        f'its reset failed: device {address}: its BARs lost their addresses'))
    machine.run(f'echo 1 > /sys/bus/pci/devices/{address}/remove; '
                'echo 1 > /sys/bus/pci/rescan')
    patience.becomes('reserved units', lambda: tenant.ledger.device(
        machine.host, address).reserved, 0)
    server = tenant.boot(machine.host, CUSTOM_ALVEO=1)
    assert server.has(CUSTOM_ALVEO=1) == [address]
    server.delete()
