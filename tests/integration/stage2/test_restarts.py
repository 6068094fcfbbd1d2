# SPDX-License-Identifier: Apache-2.0
"""Restarts of services and reboots of the machine."""

import pytest

from tests.integration.nested import card as cards
from tests.integration.nested import patience

HAS = {'CUSTOM_GPU': 1, 'CUSTOM_QAT': 1, 'VGPU': 1}


@pytest.fixture(scope='module')
def server(tenant, machine):
    server = tenant.boot(machine.host, **HAS)
    yield server
    server.delete()


@pytest.fixture
def untouched(server, machine):
    """Check that the guest kept running and no device was reset."""
    card = cards.Card(machine, 'h100')
    held, boot = server.has(**HAS), server.guest().boot
    resets = card.resets
    yield
    server.lives()
    assert (card.resets, card.scratch) == (resets, card.WRITTEN)
    assert (server.guest().boot, server.guest().gone) == (boot, 0)
    assert server.has(**HAS) == held


@pytest.fixture
def usable(tenant, machine):
    """Check afterwards that a new server can be created and deleted."""
    yield
    patience.until('nova-compute can be used again',
                   lambda: tenant.service(machine.host))
    other = tenant.boot(machine.host, CUSTOM_QAT=1)
    other.has(CUSTOM_QAT=1)
    other.delete()


@pytest.mark.usefixtures('untouched', 'usable')
class TestServices:

    def test_nova_compute_is_restarted(self, machine):
        machine.restart('nova-compute')

    def test_nova_compute_is_killed(self, machine):
        machine.kill('nova-compute')
        machine.start('nova-compute')

    def test_libvirtd_is_restarted(self, machine):
        machine.restart('libvirtd')


@pytest.mark.usefixtures('usable')
class TestMachine:

    def test_reboot_with_running_guest(self, server, machine):
        held, boot = server.has(**HAS), server.guest().boot
        machine.reboot()
        server.restarted(boot)
        server.wait('ACTIVE')
        # The reboot removed the VF and the mdev. They exist again.
        assert server.has(**HAS) == held

    def test_reboot_with_stopped_guest(self, server, machine, inside):
        held = server.has(**HAS)
        server.act('stop_server', status='SHUTOFF')
        machine.reboot()
        server.wait('SHUTOFF')
        [mdev] = [address for address in held if ':' not in address]
        assert mdev in inside.look()[1]
        server.act('start_server')
        assert server.has(**HAS) == held
