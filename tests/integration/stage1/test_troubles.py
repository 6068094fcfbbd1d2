# SPDX-License-Identifier: Apache-2.0
"""What a server depends on goes away while it is being made.

It gets its devices in the end, or is in ERROR; nothing stays behind; and the
next one gets them all.
"""

import time

import pytest

from tests.integration import steps
from tests.integration.stage1 import outer as machines

GPU = machines.GPU

#: Seconds that a service is away.
_AWAY = 30


@pytest.mark.parametrize('service', ['rabbitmq', 'mariadb'])
@pytest.mark.parametrize('moment', ['scheduling', 'spawning'])
def test_away(cloud, accelerators, service, moment):
    servers = _until(cloud, accelerators, moment)
    cloud.kill(service)
    time.sleep(_AWAY)
    cloud.start(service)
    _end(cloud, accelerators, servers)


def test_killed(cloud, accelerators):
    servers = _until(cloud, accelerators, 'spawning')
    cloud.kill('nova-compute')
    cloud.start('nova-compute')
    _end(cloud, accelerators, servers)


def _until(cloud, accelerators, moment):
    """Servers of which one at least has come that far."""
    flavor = accelerators.of_gpus(2)
    servers = [accelerators.post(flavor, f'late-{number}')
               for number in range(3)]
    compute = cloud.connection.compute
    steps.wait(f'a server that is {moment}', lambda: any(
        compute.get_server(server.id).task_state == moment
        for server in servers), 60, pause=0)
    return servers


def _end(cloud, accelerators, servers):
    """See that all is well in the end."""
    # nova-api refuses or fails until what it needs is there again.
    before = steps.wait('an answer of nova-api', cloud.heartbeats, 120)
    cloud.beating(('nova-compute', 'nova-conductor', 'nova-scheduler'),
                  before)
    for server in accelerators.settle(*servers, seconds=300):
        if server.status == 'ACTIVE':
            accelerators.check(server, GPU, GPU)
        else:
            assert accelerators.fault(server)
    twice = {address: who for address, who in accelerators.held().items()
             if len(who) > 1}
    assert not twice, f'devices of two servers: {twice}'
    accelerators.delete(*servers)
    accelerators.check_nothing_left()
    after = accelerators.boot(accelerators.of_gpus(8), 'after')
    accelerators.check(after, *[GPU] * 8)
