# SPDX-License-Identifier: Apache-2.0
"""Two nova-api and two nova-scheduler, and servers that come all at once."""

from concurrent import futures

import pytest

from tests.integration.stage1 import outer as machines

GPU = machines.GPU
_MORE = ('nova-api-2', 'nova-scheduler-2')


@pytest.fixture(scope='module')
def apis(cloud, outer):
    """Connections to two nova-api, beside two nova-scheduler."""
    cloud.start(*_MORE)
    second = cloud.connection.connect_as()
    second.compute.endpoint_override = 'http://127.0.0.1:8775/v2.1'
    yield cloud.connection, second
    cloud.stop(*_MORE)
    for service in cloud.connection.compute.services():
        if service.host == 'cloud-2':
            cloud.connection.compute.delete_service(service)


@pytest.mark.parametrize('each, asked', [(1, 12), (2, 6)])
def test_last_devices(cloud, apis, accelerators, each, asked):
    flavor = accelerators.of_gpus(each)
    before = cloud.access_log('nova-api-2').read_text().count('POST 202')
    with futures.ThreadPoolExecutor(asked) as pool:
        servers = list(pool.map(
            lambda number: accelerators.post(
                flavor, f'race-{number}',
                compute=apis[number % 2].compute), range(asked)))
    after = cloud.access_log('nova-api-2').read_text().count('POST 202')
    assert after - before == asked // 2, 'the second nova-api was not asked'
    servers = accelerators.settle(*servers)
    active = [server for server in servers if server.status == 'ACTIVE']
    held = accelerators.held()
    twice = {address: who for address, who in held.items() if len(who) > 1}
    assert not twice, f'devices of two servers: {twice}'
    assert len(active) == 8 // each, (
        f'{len(active)} servers are ACTIVE, where {8 // each} can be')
    for server in servers:
        accelerators.check(
            server, *[GPU] * (each if server in active else 0))
