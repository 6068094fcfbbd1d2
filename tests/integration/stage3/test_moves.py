# SPDX-License-Identifier: Apache-2.0
"""Cold migration, resize and evacuation to a host with equal devices."""

import pytest

from tests.integration.nested import patience

HAS = {'CUSTOM_GPU': 1, 'CUSTOM_QAT': 1, 'VGPU': 1}


@pytest.fixture
def server(tenant, here):
    server = tenant.boot(here.host, **HAS)
    yield server
    server.delete()


def taken(tenant, host):
    """Check that the GPU of a host is not free."""
    other = tenant.boot(host, 'ERROR', CUSTOM_GPU=1)
    other.delete()


def free(tenant, host):
    """Check that a new server gets the devices of a host, all cleared."""
    other = tenant.boot(host, **HAS)
    other.has(**HAS)
    other.delete()


def test_cold_migration(tenant, server, here, there):
    server.has(**HAS)
    server.act('migrate_server', host=there.host, status='VERIFY_RESIZE')
    assert server.host == there.host
    server.has(**HAS)
    taken(tenant, here.host)
    server.act('confirm_server_resize', meanwhile=('VERIFY_RESIZE',))
    server.has(**HAS)
    assert server.id not in tenant.inside(here.host).domains()
    free(tenant, here.host)


def test_reverted_cold_migration(tenant, server, here, there):
    held = server.has(**HAS)
    server.act('migrate_server', host=there.host, status='VERIFY_RESIZE')
    server.has(**HAS)
    server.act('revert_server_resize', meanwhile=('VERIFY_RESIZE',))
    assert (server.host, server.has(**HAS)) == (here.host, held)
    free(tenant, there.host)


def test_resize_moves_to_host_with_enough(tenant, server, here, there):
    more = {'CUSTOM_GPU': 1, 'CUSTOM_QAT': 4}
    server.act('resize_server', tenant.flavor(**more),
               status='VERIFY_RESIZE')
    assert server.host == there.host
    server.has(**more)
    server.act('confirm_server_resize', meanwhile=('VERIFY_RESIZE',))
    server.has(**more)
    free(tenant, here.host)


def test_evacuation(tenant, server, here, there):
    server.has(**HAS)
    here.crash()
    force_down(tenant, here.host, True)
    server.act('evacuate_server', host=there.host)
    # Nova shows the new host later than the status ACTIVE.
    patience.becomes('host of the server', lambda: server.host, there.host)
    server.has(**HAS)
    # The guest may still run on the old host, so it keeps its allocations.
    classes, _cards = tenant.ledger.promised(server.id, here.host)
    assert classes == HAS
    here.power_on()
    force_down(tenant, here.host, False)
    patience.until('the machine can be used again',
                   lambda: tenant.service(here.host))
    patience.becomes('old host has the domain', lambda: server.id in
                     tenant.inside(here.host).domains(), False)
    patience.becomes(
        'allocations from the old host',
        lambda: tenant.ledger.promised(server.id, here.host), ({}, {}))
    server.has(**HAS)
    free(tenant, here.host)


def force_down(tenant, host, down):
    [service] = tenant.compute.services(binary='nova-compute', host=host)
    tenant.compute.update_service_forced_down(service, forced=down)
