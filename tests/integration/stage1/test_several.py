# SPDX-License-Identifier: Apache-2.0
"""Two nova-api and two nova-scheduler, and servers that come all at once."""

from concurrent import futures

import pytest

from tests.integration import steps
from tests.integration.cloud import services
from tests.integration.stage1 import outer as machines

GPU = machines.GPU
_MORE = ('nova-api-2', 'nova-scheduler-2')
_SCHEDULERS = ('nova-scheduler', 'nova-scheduler-2')

#: Only so does a scheduler say which servers it is asked about.
_CONF = '[DEFAULT]\ndebug = true\n'
_ASKED = "Starting to schedule for instances: ['{}']"


@pytest.fixture(scope='module')
def apis(cloud, outer):
    """Connections to two nova-api, beside two nova-scheduler."""
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
def test_last_devices(cloud, apis, accelerators, each, asked):
    flavor = accelerators.of_gpus(each)
    before = _answered(cloud)
    with futures.ThreadPoolExecutor(asked) as pool:
        servers = list(pool.map(
            lambda number: accelerators.post(
                flavor, f'race-{number}',
                compute=apis[number % 2].compute), range(asked)))
    # It writes down that it has answered after it has.
    steps.wait('half of the requests in the log of the second nova-api',
               lambda: _answered(cloud) - before == asked // 2)
    servers = accelerators.settle(*servers)
    # RabbitMQ asks them in turn.
    for scheduler in _SCHEDULERS:
        assert _asked(cloud, scheduler, servers), (
            f'{scheduler} was asked about none of them')
    active = [server for server in servers if server.status == 'ACTIVE']
    held = accelerators.held()
    twice = {address: who for address, who in held.items() if len(who) > 1}
    assert not twice, f'devices of two servers: {twice}'
    assert len(active) == 8 // each, (
        f'{len(active)} servers are ACTIVE, where {8 // each} can be')
    for server in servers:
        accelerators.check(
            server, *[GPU] * (each if server in active else 0))


def _answered(cloud):
    """How many servers the second nova-api has accepted."""
    return cloud.access_log('nova-api-2').read_text().count('POST 202')


def _asked(cloud, scheduler, servers):
    """Those that a nova-scheduler was asked about."""
    said = cloud.log(scheduler).read_text(errors='replace')
    return [server for server in servers if _ASKED.format(server.id) in said]
