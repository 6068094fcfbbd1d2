# SPDX-License-Identifier: Apache-2.0
"""Live migration of servers without devices, and its refusal with devices.

A server with devices can live-migrate if the device's driver can save and
restore its state. Here, vfio-pci cannot. The driver of the mdevs can, but
libvirt and QEMU are too old to use that. So the tests with devices check that
the migration is refused and the server is unaffected.
"""

from openstack import exceptions
import pytest

from tests.integration.nested import patience


def refused(tenant, server, here, there, reason, **has):
    """Check that a live migration is refused and the guest unaffected."""
    held, boot = server.has(**has), server.guest().boot
    log = here.log('nova-compute')
    begin = log.stat().st_size
    with pytest.raises(exceptions.BadRequestException, match='No valid host'):
        server.act('live_migrate_server', host=there.host,
                   block_migration='auto')
    server.wait('ACTIVE')
    assert server.host == here.host
    assert reason in log.read_text(errors='replace')[begin:]
    assert tenant.ledger.promised(server.id, there.host) == ({}, {})
    server.lives()
    assert server.guest().boot == boot
    assert server.has(**has) == held
    # The other host has no leftover claims: all its devices are free.
    other = tenant.boot(there.host, **has)
    other.delete()


def test_server_without_devices_moves(tenant, here, there):
    server = tenant.boot(here.host)
    before = server.guest().alive
    server.act('live_migrate_server', host=there.host, block_migration='auto')
    assert server.host == there.host
    # The guest was not rebooted: its counter continues.
    patience.until('the guest runs', lambda: server.hear().alive > before)
    server.delete()


@pytest.mark.parametrize('resource_class, reason', [
    ('CUSTOM_QAT', 'its entry in device_spec does not say that it is '
                   'live_migratable; migrate the server cold'),
    ('VGPU', 'this host: its libvirt or QEMU is too old to move the state of '
             'devices; libvirt 10.0.0 and QEMU 8.2.2 can')])
def test_server_with_devices_stays(tenant, here, there, resource_class,
                                   reason):
    server = tenant.boot(here.host, **{resource_class: 1})
    refused(tenant, server, here, there, reason, **{resource_class: 1})
    server.delete()
