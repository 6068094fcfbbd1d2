# SPDX-License-Identifier: Apache-2.0
"""A running server moves from a resource class per model to one class."""

from openstack import exceptions
import pytest

from tests.integration.cloud import limits
from tests.integration.nested import card as cards
from tests.integration.nested import patience
from tests.integration.nested import scene

BEFORE = {'CUSTOM_GPU': 1, 'CUSTOM_ALVEO': 1}
AFTER = {'CUSTOM_CARD': 2}
_SERVICES = ('nova-api', 'nova-scheduler')


@pytest.fixture
def server(cloud, tenant, machine):
    with limits.unified(cloud, {'servers': 100, **{
            f'class:{name}': amount
            for name, amount in (BEFORE | AFTER).items()}}):
        server = tenant.boot(machine.host, **BEFORE)
        yield server
        server.delete()
        cloud.configure('nova', '', 'classes')
        cloud.restart(*_SERVICES)
        scene.offer(tenant, machine)


def move(cloud, machine):
    """Do what an operator does."""
    cloud.configure('nova', '[nova_accel]\nmoved_classes = ' + ','.join(
        f'{name}:CUSTOM_CARD' for name in BEFORE) + '\n', 'classes')
    scene.give_class(machine, 'CUSTOM_CARD', *BEFORE)
    cloud.restart(*_SERVICES)


def test_guest_keeps_running_with_its_devices(
        server, cloud, tenant, machine, inside):
    card = cards.Card(machine, 'h100')
    aliases, before = inside.hostdevs(server.id), server.guest()
    resets = card.resets

    def has_moved():
        classes, devices = tenant.ledger.promised(server.id, machine.host)
        # Each device counts once at any time.
        assert (classes.total(), devices.total()) == (2, 2)
        return classes == AFTER

    move(cloud, machine)
    patience.until('the server has the new class', has_moved)
    patience.until(
        'the host offers the new class',
        lambda: tenant.ledger.can_be_had(machine.host).get('CUSTOM_CARD') == 2)

    server.lives()
    after = server.guest()
    assert (after.boot, after.gone, after.devices) == (
        before.boot, 0, before.devices)
    assert (card.resets, card.scratch) == (resets, card.WRITTEN)
    assert inside.hostdevs(server.id) == aliases
    assert inside.disagreements() == []
    # Old and new flavors have one limit.
    for resources in {'CUSTOM_GPU': 1}, {'CUSTOM_CARD': 1}:
        with pytest.raises(exceptions.ForbiddenException,
                           match='class:CUSTOM_CARD'):
            tenant.boot(machine.host, **resources)

    server.act('reboot_server', 'HARD')
    server.restarted(before.boot)
    assert server.has(**AFTER) == sorted(aliases)
    # Nova has kept the old request.
    server.act('shelve_server', status='SHELVED_OFFLOADED',
               meanwhile=('ACTIVE', 'SHELVED'))
    server.act('unshelve_server', meanwhile=('SHELVED_OFFLOADED',))
    assert server.has(**AFTER) == sorted(aliases)
