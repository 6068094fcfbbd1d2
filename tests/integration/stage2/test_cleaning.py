# SPDX-License-Identifier: Apache-2.0
"""A disk is erased with nova-accel-nvme between two servers."""

import json

import pytest

from tests.integration.machine import root
from tests.integration.nested import patience

DISK = '0x80865845'
#: As in machine/files/guest.c.
_MARK = b'a guest wrote this'
_BLOCKS = 64

_CLEANER = {'name': 'nvme', 'driver': 'nvme', 'timeout': 900, **{
    step: [f'{root.NOVA}/bin/nova-accel-nvme', step, '{address}']
    for step in ('clean', 'verify')}}

#: The name of nvme-cli while a script has its place.
_TOOL, _MOVED = '/usr/sbin/nvme', '/usr/sbin/nvme-cli'


class Slot:
    """The disk, from a server to the next one."""

    def __init__(self, tenant, machine, address, offer):
        self._tenant = tenant
        self._machine = machine
        self._offer = offer
        self._address = address

    def offer(self, **changes):
        """Offer the disk with a cleaner, of which some keys differ."""
        entry = {'vendor_id': '8086', 'product_id': '5845',
                 'resource_class': 'CUSTOM_DISK', 'clean': 'nvme'}
        self._offer(f'cleaner = {json.dumps({**_CLEANER, **changes})}\n'
                    f'device_spec = {json.dumps(entry)}\n')
        self.wait_until_free()

    def used(self) -> int:
        """Give the disk to a server that writes to it, and delete that.

        :returns: how many blocks of other servers it found
        """
        server = self._tenant.boot(self._machine.host, CUSTOM_DISK=1)
        [disk] = patience.until('the guest has a disk',
                                lambda: server.guest().disks)
        assert disk.blocks == _BLOCKS
        assert self.is_dirty
        server.delete()
        return disk.before

    @property
    def is_dirty(self) -> bool:
        """Whether QEMU's file has blocks of a guest."""
        return _MARK in self._machine.image('disk').read_bytes()

    def wait_until_free(self):
        def reserved():
            provider = self._tenant.ledger.device(self._machine.host,
                                                  self._address)
            return provider and provider.reserved
        patience.becomes('reserved units of the disk', reserved, 0)

    def wait_until_it_failed(self):
        patience.until('the cleaning has failed', lambda: any(
            row['Address'] == self._address and 'cleaning failed' in str(
                row['Reason']) for row in self._tenant.cloud.openstack(
                    'accel', 'device', 'list')))

    def check_withheld(self):
        server = self._tenant.boot(self._machine.host, 'ERROR', CUSTOM_DISK=1)
        assert 'No valid host' in server.view.fault['message']
        server.delete()

    def clean_again(self):
        self._tenant.cloud.run('openstack', 'accel', 'device', 'set',
                               '--clean',
                               f'{self._machine.host}/{self._address}')
        self.wait_until_free()


@pytest.fixture
def slot(tenant, machine, inside, offer):
    return Slot(tenant, machine, inside.find(DISK), offer)


@pytest.fixture
def instead(machine):
    """Return a function that puts a script in the place of a format."""
    def instead(script):
        machine.run(f'mv {_TOOL} {_MOVED}')
        machine.write(_TOOL, f'#!/bin/sh\ncase $1 in format) {script} ;; esac'
                      f'\nexec {_MOVED} "$@"\n')
        machine.run(f'chmod +x {_TOOL}')
    yield instead
    machine.run(f'touch /run/go; test ! -e {_MOVED} || mv {_MOVED} {_TOOL}')


def test_next_server_finds_nothing(slot, inside):
    address = inside.find(DISK)
    before = inside.look()[0][address].driver
    slot.offer()
    slot.used()
    slot.wait_until_free()
    assert not slot.is_dirty
    assert inside.look()[0][address].driver == before
    assert slot.used() == 0
    slot.wait_until_free()


def test_without_an_erase_it_finds_all(slot):
    """Otherwise, the test above proves nothing."""
    slot.offer(clean=['/bin/true'], verify=['/bin/true'])
    slot.used()
    slot.wait_until_free()
    assert slot.used() == _BLOCKS
    slot.wait_until_free()


@pytest.mark.parametrize('script, timeout', [
    ('exit 0', 900), ('exit 1', 900), ('sleep 100000', 60)])
def test_cleaner_that_fails(slot, instead, machine, script, timeout):
    slot.offer(timeout=timeout)
    instead(script)
    slot.used()
    slot.wait_until_it_failed()
    assert slot.is_dirty
    slot.check_withheld()
    machine.run(f'mv {_MOVED} {_TOOL}')
    slot.clean_again()
    assert slot.used() == 0
    slot.wait_until_free()


def test_nova_compute_is_killed_during_a_cleaning(
        slot, instead, machine, said):
    slot.offer()
    machine.run('rm -f /run/go')
    instead('touch /run/begun; while [ ! -e /run/go ]; do sleep 1; done')
    slot.used()
    patience.until('the cleaning has begun', lambda: machine.run(
        'ls /run/begun', check=False))
    machine.kill('nova-compute')
    machine.run('pkill -9 -f privsep-helper', check=False)
    machine.start('nova-compute')
    patience.until('nova-compute waits for the cleaner', lambda: said(
        'a cleaner is still at work'))
    slot.check_withheld()
    assert slot.is_dirty
    machine.run('touch /run/go')
    slot.wait_until_free()
    assert slot.used() == 0
    slot.wait_until_free()
