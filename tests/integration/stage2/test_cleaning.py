# SPDX-License-Identifier: Apache-2.0
"""Devices are cleaned, and FPGAs programmed, between two servers."""

import pytest

from tests.integration.nested import patience
from tests.integration.nested import slots
from tests.integration.nested import tenant as tenants


@pytest.fixture(scope='module')
def port(machine, inside):
    with slots.port(machine, inside.find(slots.Region.IDS)):
        yield


@pytest.fixture(params=[slots.Disk, slots.Region])
def slot(request, tenant, machine, inside, port, offer):
    """Return a clean device; a test that passes leaves it clean."""
    slot = request.param(tenant, machine, inside, offer)
    slot.prepare()
    yield slot
    machine.run('touch /run/go')
    slot.put_back()


def test_next_server_finds_nothing(slot, inside):
    before = inside.look()[0][slot.address].driver
    slot.offer()
    slot.used()
    slot.wait_until_free()
    assert not slot.is_dirty
    assert inside.look()[0][slot.address].driver == before
    assert slot.used() == 0
    slot.wait_until_free()


def test_without_a_cleaning_it_finds_all(slot):
    """Otherwise, the test above proves nothing."""
    slot.offer(clean=['/bin/true'], verify=['/bin/true'])
    slot.used()
    assert slot.used() == slot.WRITTEN
    slot.wait_until_free()


def test_cleaner_that_fails(slot, said):
    """One that does nothing, fails, or hangs withholds the device."""
    slot.put_instead('exit 0')
    slot.offer()
    slot.used()
    patience.until('the verification fails', lambda: said(
        'was not cleaned, and no server gets it: verify '))
    slot.check_withheld()
    slot.put_instead('exit 1')
    slot.clean_again()
    patience.until('the cleaning fails', lambda: said(
        'was not cleaned, and no server gets it: clean '))
    slot.put_instead('sleep 100000')
    slot.offer(timeout=60)
    patience.until('the cleaning takes too long', lambda: said(
        'was killed: it was not done after 60 seconds'))
    assert slot.is_dirty
    slot.check_withheld()
    slot.put_back()
    slot.offer()
    slot.wait_until_free()
    assert not slot.is_dirty


def test_nova_compute_is_killed_during_a_cleaning(slot, machine, said):
    machine.run('rm -f /run/begun /run/go')
    slot.put_instead(
        'touch /run/begun; while [ ! -e /run/go ]; do sleep 1; done')
    slot.offer()
    slot.used()
    patience.until('the cleaning has begun', lambda: machine.run(
        'ls /run/begun', check=False))
    machine.kill('nova-compute')
    machine.run('pkill -9 -f privsep-helper', check=False)
    machine.start('nova-compute')
    patience.until('nova-compute waits for the cleaner', lambda: said(
        'a process of an earlier cleaner still exists'))
    slot.check_withheld()
    assert slot.is_dirty
    machine.run('touch /run/go')
    slot.wait_until_free()
    assert not slot.is_dirty


@pytest.fixture
def stranger(cloud, tenant):
    """Return a tenant in another project."""
    project = tenants.project(cloud, 'stranger')
    yield tenants.Tenant(cloud, tenant.machines, project)
    cloud.connection.identity.delete_project(
        cloud.connection.identity.find_project(project))


@pytest.fixture
def flavor(cloud, tenant):
    """Return the id of a flavor with a bitstream for the region."""
    image = cloud.connection.image.create_image(
        'bitstream', data=slots.Region.BITSTREAM, visibility='public',
        disk_format='raw', container_format='bare',
        **{'accel:function_id': slots.Region.BITSTREAM.hex()})
    yield tenant.flavor_of('bitstream', {
        'resources': {slots.Region.CLASS: 1}, 'bitstream': image.id})
    cloud.connection.image.delete_image(image)


def test_bitstream_of_another_project_is_programmed_again(
        tenant, stranger, machine, inside, port, offer, flavor):
    region, later = (slots.Region(each, machine, inside, offer)
                     for each in (tenant, stranger))
    region.prepare()
    region.offer_for_bitstreams()
    assert region.used(flavor) == 0
    # It is not programmed again for servers of the same project.
    assert region.used(flavor) == region.WRITTEN
    assert later.used(flavor) == 0
