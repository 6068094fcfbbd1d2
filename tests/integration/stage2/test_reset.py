# SPDX-License-Identifier: Apache-2.0
"""A server does not get a device that still has another server's data."""

import json

import pytest

from tests.integration.nested import card as cards
from tests.integration.nested import patience

U250 = '0x10ee5000'
# This card cannot be reset.
U200 = '0x10ee5004'
# One of the two functions of a card that can only be reset together.
DUO = '0x10ee50b5'
ENTRY = ('device_spec = {{"vendor_id": "10ee", "product_id": "5004", '
         '"resource_class": "CUSTOM_OLD"{more}}}\n')


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
        'its reset failed: Inappropriate ioctl for device'))
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


#: Write the scratch register of a function that nobody uses.
_WRITE = """python3 -c "
import mmap
device = '/sys/bus/pci/devices/{address}/'
def enable(number):
    with open(device + 'enable', 'w') as file:
        file.write(number)
enable('1')
with open(device + 'resource0', 'r+b') as file:
    memory = mmap.mmap(file.fileno(), 4096)
    memory[256:260] = ({value}).to_bytes(4, 'little')
enable('0')
" """
_IN_RESET = 'ls -l /proc/[0-9]*/fd 2>/dev/null | grep -c "/dev/vfio/[0-9]"'

@pytest.fixture
def duo(tenant, machine, inside, offer, said):
    """Offer a card of two functions that can only be reset together.

    With this module, bridges have no ``reset_subordinate``: so vfio resets it.
    """
    machine.run('modprobe old_bridges')
    assert not machine.run('ls -d /sys/bus/pci/devices/*/reset_subordinate',
                           check=False)
    first = inside.find(DUO)
    slot = first.rpartition('.')[0]

    def name(**keys):
        entry = {**keys, 'resource_class': 'CUSTOM_DUO'}
        offer(f'device_spec = {json.dumps(entry)}\n')
    name(vendor_id='10ee', product_id='50b5')
    patience.until('nova-compute logs which entry is right', lambda: said(
        'name all of them in one entry, in place of [nova_accel] device_spec '
        f'#5: {{"address": "{slot}.*", "resource_class": "CUSTOM_DUO"}}'))
    name(address=f'{slot}.*')
    patience.until('the card is offered', lambda: tenant.ledger.device(
        machine.host, first))
    return [first, f'{slot}.1']


def _soil(machine, address):
    """Write data into a free card, as a server would have left it."""
    machine.run(_WRITE.format(address=address, value=cards.Card.WRITTEN))


def test_card_of_two_functions_is_reset_by_its_bridge(
        tenant, machine, inside, offer):
    """It is reset by ``reset_subordinate``, which needs no vfio driver."""
    card = cards.Card(machine, 'duo')
    slot = inside.find(DUO).rpartition('.')[0]
    _soil(machine, f'{slot}.0')
    assert card.scratch == card.WRITTEN
    assert machine.run('ls -d /sys/bus/pci/devices/*/reset_subordinate')
    entry = {'address': f'{slot}.*', 'resource_class': 'CUSTOM_DUO'}
    offer(f'device_spec = {json.dumps(entry)}\n')
    patience.becomes('data in the card', lambda: card.scratch, 0)
    patience.until('the card is offered', lambda: tenant.ledger.device(
        machine.host, f'{slot}.0'))


def test_card_of_two_functions_is_reset_by_vfio(tenant, machine, inside, duo):
    card = cards.Card(machine, 'duo')
    server = tenant.boot(machine.host, CUSTOM_DUO=1)
    assert sorted(inside.hostdevs(server.id)) == duo
    assert [device.before for device in server.guest().devices] == [0]
    assert card.scratch == card.WRITTEN
    server.delete()
    patience.becomes('data of the server', lambda: card.scratch, 0)
    # Without a guest, only nova-compute resets it.
    before = {address: function.driver
              for address, function in inside.look()[0].items()}
    _soil(machine, duo[0])
    assert card.scratch == card.WRITTEN
    machine.restart('nova-compute')
    patience.becomes('data in the card', lambda: card.scratch, 0)
    patience.becomes('files of vfio', lambda: machine.run(
        _IN_RESET, check=False).strip(), '0')
    assert before == {address: function.driver
                      for address, function in inside.look()[0].items()}


def test_nova_compute_is_killed_during_a_reset_by_vfio(
        tenant, machine, duo):
    """The card is withheld until it was reset as a whole."""
    card = cards.Card(machine, 'duo')
    _soil(machine, duo[0])
    resets = card.resets
    # After the reset the kernel waits a minute for the card's answer.
    card.stick(True)
    machine.restart('nova-compute')
    patience.until('the reset has begun', lambda: card.resets > resets)
    assert machine.run(_IN_RESET, check=False).strip() == '1'
    machine.kill('nova-compute')
    machine.run('pkill -9 -f privsep-helper', check=False)
    machine.start('nova-compute')
    patience.becomes('reserved units', lambda: tenant.ledger.device(
        machine.host, duo[0]).reserved, 1)
    other = tenant.boot(machine.host, 'ERROR', CUSTOM_DUO=1)
    other.delete()
    card.stick(False)
    patience.becomes('files of vfio', lambda: machine.run(
        _IN_RESET, check=False).strip(), '0')
    # Whatever the killed reset left, the next one clears it. The functions
    # still have the driver of that reset.
    machine.stop('nova-compute')
    for address in duo:
        machine.run(f'cd /sys/bus/pci/devices/{address}; '
                    f'echo {address} > driver/unbind')
    _soil(machine, duo[0])
    machine.start('nova-compute')
    patience.becomes('data in the card', lambda: card.scratch, 0)
    patience.becomes('reserved units', lambda: tenant.ledger.device(
        machine.host, duo[0]).reserved, 0)
    server = tenant.boot(machine.host, CUSTOM_DUO=1)
    assert [device.before for device in server.guest().devices] == [0]
    server.delete()
