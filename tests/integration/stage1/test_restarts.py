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
    _recovered(cloud)
    if service.startswith('neutron'):
        _reported(cloud)
    cloud.check(service)
    assert views.Before.of(accelerators) == before
    assert accelerators.findings() == []
    next_one = accelerators.boot(accelerators.of_gpus(2), 'next')
    assert not accelerators.check(next_one, GPU, GPU) & set(before.held)
    accelerators.delete(next_one)
    assert views.Before.of(accelerators) == before


def _recovered(cloud):
    """Wait until Nova has noticed that all is well again.

    nova-compute says that it is disabled while libvirt is not there, and all
    of Nova's are silent without RabbitMQ and MariaDB.
    """
    def well():
        services = list(cloud.connection.compute.services())
        return all((service.state, service.status) == ('up', 'enabled')
                   for service in services)
    # nova-api refuses or fails until what it needs is there again.
    before = steps.wait('an answer of nova-api', cloud.heartbeats, 120)
    cloud.beating(('nova-compute', 'nova-conductor', 'nova-scheduler'),
                  before)
    steps.wait('all services of Nova, up and enabled', well, 120)

    # Each thread of an API has connections of its own to memcached and
    # Keystone; that one has gone it notices by a request, which fails.
    def ask():
        return cloud.connection.placement.get('/resource_providers').ok
    steps.wait('answers of all threads of Placement',
               lambda: all(ask() for _time in range(12)), 60)


def _reported(cloud):
    """Wait until Neutron hears of its agent again.

    Its API, neutron-rpc and the agent have a part in that, and of these only
    the API says when it can be used. To ask is also a plain request, before
    which Neutron 29 fails at some others.
    """
    def heard():
        return [agent.last_heartbeat_at
                for agent in cloud.connection.network.agents()]
    before = steps.wait('an answer of Neutron', heard, 120)
    steps.wait('a sign of Neutron\'s agent', lambda: heard() > before, 180)
