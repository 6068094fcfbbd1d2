# SPDX-License-Identifier: Apache-2.0
"""Restarts of services while servers have devices.

A restart must not change the servers' devices in libvirt, their allocations
or the inventories. A new server must still get free devices.
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
    """Two servers, with one device and with two devices."""
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
    """Wait until Neutron has a new heartbeat of its agent.

    The heartbeat passes neutron-rpc and the agent, which do not show when
    they are ready. The request for it is also the first plain request to the
    API. Without one, Neutron 29 fails some other requests.
    """
    def heard():
        return [agent.last_heartbeat_at
                for agent in cloud.connection.network.agents()]
    before = steps.wait('an answer from Neutron', heard)
    steps.wait('a heartbeat of Neutron\'s agent', lambda: heard() > before)
