# SPDX-License-Identifier: Apache-2.0
"""Concurrent server creations with two nova-api and two nova-scheduler."""

from concurrent import futures

import pytest

from tests.integration import steps
from tests.integration.cloud import services
from tests.integration.stage1 import outer as machines

GPU = machines.GPU
_MORE = ('nova-api-2', 'nova-scheduler-2')
_SCHEDULERS = ('nova-scheduler', 'nova-scheduler-2')

#: nova-scheduler logs the servers of its requests at debug level only.
_CONF = '[DEFAULT]\ndebug = true\n'
_ASKED = "Starting to schedule for instances: ['{}']"


@pytest.fixture(scope='module')
def apis(cloud, outer):
    """Run a second nova-api and nova-scheduler.

    :returns: a connection to each nova-api
    """
    cloud.configure('nova', _CONF, 'several')
    cloud.restart('nova-scheduler')
    cloud.start(*_MORE)
    cloud.beating(_MORE)
    second = cloud.connection.connect_as()
    second.compute.endpoint_override = 'http://127.0.0.1:8775/v2.1'
    yield cloud.connection, second
    cloud.stop(*_MORE)
    for service in cloud.connection.compute.services():
        if service.host == services.SECOND:
            cloud.connection.compute.delete_service(service)
    cloud.configure('nova', '', 'several')
    cloud.restart('nova-scheduler')


@pytest.mark.parametrize('each, asked', [(1, 12), (2, 6)])
def test_concurrent_servers_share_no_device(
        cloud, apis, accelerators, each, asked):
    flavor = accelerators.of_gpus(each)
    before = _answered(cloud)
    with futures.ThreadPoolExecutor(asked) as pool:
        servers = list(pool.map(
            lambda number: accelerators.post(
                flavor, f'race-{number}',
                compute=apis[number % 2].compute), range(asked)))
    # nova-api writes the line of its log after it has answered.
    steps.wait('half of the requests in the log of the second nova-api',
               lambda: _answered(cloud) - before == asked // 2)
    servers = accelerators.settle(*servers)
    # RabbitMQ distributes the requests to both schedulers.
    for scheduler in _SCHEDULERS:
        assert _asked(cloud, scheduler, servers), (
            f'{scheduler} got no request for these servers')
    active = [server for server in servers if server.status == 'ACTIVE']
    held = accelerators.held()
    twice = {address: ids for address, ids in held.items() if len(ids) > 1}
    assert not twice, f'devices with more than one server: {twice}'
    assert len(active) == 8 // each, (
        f'{len(active)} servers are ACTIVE instead of {8 // each}')
    for server in servers:
        accelerators.check(
            server, *[GPU] * (each if server in active else 0))


def _answered(cloud):
    """Return how many servers the second nova-api has accepted."""
    return cloud.access_log('nova-api-2').read_text().count('POST 202')


def _asked(cloud, scheduler, servers):
    """Return the servers that a nova-scheduler got requests for."""
    said = cloud.log(scheduler).read_text(errors='replace')
    return [server for server in servers if _ASKED.format(server.id) in said]
