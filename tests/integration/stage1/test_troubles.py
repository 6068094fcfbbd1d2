# SPDX-License-Identifier: Apache-2.0
"""A service fails while a server is being created.

The server either gets its devices, goes to ERROR, or stays in BUILD without a
host. In each case its delete leaves nothing behind, and a new server gets all
devices.
"""

import time

import pytest

from tests.integration import steps
from tests.integration.stage1 import outer as machines

GPU = machines.GPU

#: How many seconds the service is down.
_AWAY = 15
#: After so many seconds Nova does nothing more about a server without a host:
#: its RPC call has timed out.
_FORGOTTEN = 60


@pytest.mark.parametrize('service', ['rabbitmq', 'mariadb'])
@pytest.mark.parametrize('moment', ['after POST', 'spawning'])
def test_service_is_down(cloud, accelerators, service, moment):
    servers = _begin(cloud, accelerators, moment)
    cloud.kill(service)
    time.sleep(_AWAY)
    cloud.start(service)
    _end(cloud, accelerators, servers)


def test_nova_compute_is_killed(cloud, accelerators):
    servers = _begin(cloud, accelerators, 'spawning')
    cloud.kill('nova-compute')
    cloud.start('nova-compute')
    _end(cloud, accelerators, servers)


def _begin(cloud, accelerators, moment):
    """Create servers.

    :param moment: 'spawning' to wait until a server gets that far
    """
    flavor = accelerators.of_gpus(2)
    servers = [accelerators.post(flavor, f'late-{number}')
               for number in range(3)]
    if moment == 'spawning':
        compute = cloud.connection.compute
        steps.wait('a server that is spawning', lambda: any(
            server.task_state == 'spawning' or server.status == 'ACTIVE'
            for server in map(compute.get_server, servers)), pause=0)
    return servers


def _end(cloud, accelerators, servers):
    """Check the servers, delete them, and boot one with all devices."""
    # Until the services are back, nova-api refuses requests or fails.
    cloud.recovered()
    for server in _what_became_of(cloud, servers):
        if server.status == 'ACTIVE':
            accelerators.check(server, GPU, GPU)
    twice = {address: ids for address, ids in accelerators.held().items()
             if len(ids) > 1}
    assert not twice, f'devices with more than one server: {twice}'
    accelerators.delete(*servers)
    accelerators.check_nothing_left()
    after = accelerators.boot(accelerators.of_gpus(8), 'after')
    accelerators.check(after, *[GPU] * 8)


def _what_became_of(cloud, servers):
    """Wait until Nova is done with the servers; return those it still has."""
    begin = time.monotonic()

    def over(server):
        if time.monotonic() > begin + _FORGOTTEN and not server.compute_host:
            return True
        return server.status == 'ERROR' or (
            server.status == 'ACTIVE' and not server.task_state)

    def all_over():
        known = [cloud.connection.compute.find_server(
            server.id, ignore_missing=True) for server in servers]
        return [[server for server in known if server]] * all(
            over(server) for server in known if server)
    [known] = steps.wait('a final state of each server', all_over)
    return known
