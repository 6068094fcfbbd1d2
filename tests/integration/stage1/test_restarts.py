# SPDX-License-Identifier: Apache-2.0
"""Services that end and come back while servers have devices.

Nothing may change by it: who has what, in libvirt and in Placement, what is
free, and that the next server gets it.
"""

import pytest

from tests.integration import steps
from tests.integration.stage1 import accelerators as views
from tests.integration.stage1 import outer as machines

GPU = machines.GPU

_SERVICES = ('nova-compute', 'nova-conductor', 'nova-scheduler', 'nova-api',
             'placement', 'keystone', 'memcached', 'libvirtd', 'mariadb',
             'rabbitmq', 'glance', 'neutron', 'neutron-rpc', 'neutron-agent')


@pytest.fixture(scope='module')
def servers(_accelerators):
    """A server with a device, and one with two."""
    made = [_accelerators.boot(_accelerators.of_gpus(count), 'stays')
            for count in (1, 2)]
    yield made
    _accelerators.delete_all()
    _accelerators.check_nothing_left()


@pytest.mark.parametrize('service', _SERVICES)
def test_restart(cloud, _accelerators, servers, service):
    accelerators = _accelerators
    before = views.Before.of(accelerators)
    cloud.restart(service)
    cloud.recovered()
    if service.startswith('neutron'):
        _reported(cloud)
    cloud.check(service)
    assert views.Before.of(accelerators) == before
    assert accelerators.findings() == []
    next_one = accelerators.boot(accelerators.of_gpus(2), 'next')
    assert not accelerators.check(next_one, GPU, GPU) & set(before.held)
    accelerators.delete(next_one)
    assert views.Before.of(accelerators) == before


def _reported(cloud):
    """Wait until Neutron hears of its agent again.

    Its API, neutron-rpc and the agent have a part in that, and of these only
    the API says when it can be used. To ask is also a plain request, before
    which Neutron 29 fails at some others.
    """
    def heard():
        return [agent.last_heartbeat_at
                for agent in cloud.connection.network.agents()]
    before = steps.wait('an answer of Neutron', heard)
    steps.wait('a sign of Neutron\'s agent', lambda: heard() > before)
