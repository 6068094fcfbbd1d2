# SPDX-License-Identifier: Apache-2.0
"""What a server depends on goes away while it is being made.

It gets its devices in the end, or Nova says that it is in ERROR, or forgets
about it, as it does with one that is not on a host yet. Whichever: once it is
deleted nothing stays behind, and the next one gets them all.
"""

import time

import pytest

from tests.integration import steps
from tests.integration.stage1 import outer as machines

GPU = machines.GPU

#: Seconds that a service is away.
_AWAY = 15
#: Seconds after which Nova does no more about a server without a host: it
#: has waited for the answer to a call as long as it does.
_FORGOTTEN = 60


@pytest.mark.parametrize('service', ['rabbitmq', 'mariadb'])
@pytest.mark.parametrize('moment', ['at once', 'spawning'])
def test_away(cloud, accelerators, service, moment):
    servers = _begin(cloud, accelerators, moment)
    cloud.kill(service)
    time.sleep(_AWAY)
    cloud.start(service)
    _end(cloud, accelerators, servers)


def test_killed(cloud, accelerators):
    servers = _begin(cloud, accelerators, 'spawning')
    cloud.kill('nova-compute')
    cloud.start('nova-compute')
    _end(cloud, accelerators, servers)


def _begin(cloud, accelerators, moment):
    """Servers, and one of them at least has come that far."""
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
    """See that all is well in the end."""
    # nova-api refuses or fails until what it needs is there again.
    cloud.recovered()
    for server in _what_became_of(cloud, servers):
        if server.status == 'ACTIVE':
            accelerators.check(server, GPU, GPU)
    twice = {address: who for address, who in accelerators.held().items()
             if len(who) > 1}
    assert not twice, f'devices of two servers: {twice}'
    accelerators.delete(*servers)
    accelerators.check_nothing_left()
    after = accelerators.boot(accelerators.of_gpus(8), 'after')
    accelerators.check(after, *[GPU] * 8)


def _what_became_of(cloud, servers):
    """Servers that Nova knows still, once nothing happens to them any more."""
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
    [known] = steps.wait('the end of what happens to servers', all_over)
    return known
