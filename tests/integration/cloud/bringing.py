# SPDX-License-Identifier: Apache-2.0
"""Bring up a cloud.

The cloud is never taken down separately: it ends with its namespaces.
"""

import pathlib

from tests.integration import namespaces
from tests.integration import place
from tests.integration import steps
from tests.integration.cloud import cloud as clouds
from tests.integration.cloud import configuration
from tests.integration.cloud import databases
from tests.integration.cloud import install_guide
from tests.integration.cloud import resources

_INFRASTRUCTURE = ('memcached', 'epmd', 'virtlogd', 'libvirtd')
_APIS = ('keystone', 'placement', 'glance', 'neutron', 'nova-api')
_COMPUTE = ('nova-scheduler', 'nova-compute', 'neutron-rpc', 'neutron-agent')
#: All services that are started here.
SERVICES = ('mariadb', 'rabbitmq', *_INFRASTRUCTURE, *_APIS, 'nova-conductor',
            *_COMPUTE)
_STATE = ('glance/images', 'glance/staging', 'glance/tasks', 'rabbitmq',
          'nova/instances', 'nova/lock', 'neutron/lock', 'cyborg/lock')


def up(cloud: clouds.Cloud, shown: steps.Steps) -> None:
    """Bring a cloud up.

    :raises Failure: if a service does not get ready
    """
    with shown.step('configuration, RabbitMQ, libvirt'):
        _place()
        configuration.write(pathlib.Path('/etc'))
        install_guide.configure()
        cloud.start(*_INFRASTRUCTURE)
        # Without a running epmd, RabbitMQ would start one on all addresses.
        cloud.start('rabbitmq', wait=False)
    with shown.step('databases'):
        _databases(cloud)
    with shown.step('APIs'):
        cloud.start('rabbitmq', *_APIS)
        # A token contains the catalog. The cloud's own connection must get its
        # token after this.
        resources.identity(resources.connect())
        # Without a plain request first, Neutron 29 fails some other requests.
        list(cloud.connection.network.networks())
    with shown.step('Nova and Neutron'):
        # nova-conductor ends if Keystone does not know Nova. nova-compute
        # waits long if it starts before nova-conductor.
        cloud.start('nova-conductor')
        cloud.beating(['nova-conductor'])
        cloud.start(*_COMPUTE)
        resources.image(cloud.connection)
        for name, (ram, vcpus) in resources.FLAVORS.items():
            resources.flavor(cloud.connection, name, ram, vcpus)
        resources.network(cloud.connection)
    with shown.step('the compute node'):
        def there():
            cloud.check(*_COMPUTE)
            # The cell mapping and Neutron know the compute node.
            return list(cloud.connection.compute.hypervisors()) and any(
                agent.is_alive for agent in cloud.connection.network.agents())
        steps.wait('the compute node', there, pause=0.5)
        cloud.beating(['nova-compute', 'nova-scheduler'])


def _databases(cloud):
    if not databases.restore():
        databases.install()
        cloud.start('mariadb')
        databases.create()
        databases.fill()
        cloud.stop('mariadb')
        databases.keep()
    cloud.start('mariadb')


def _place():
    place.make(*(place.STATE / name for name in _STATE))
    here, there = configuration.INTERFACE, 'physical1'
    steps.run('ip', 'link', 'add', here, 'type', 'veth', 'peer', 'name', there)
    for end in (here, there):
        steps.run('ip', 'link', 'set', end, 'up')
    # This makes guests reachable.
    steps.run('ip', 'address', 'add', resources.ADDRESS, 'dev', there)
    with open('/etc/hosts', 'a') as hosts:
        hosts.write(f'127.0.0.1 {namespaces.HOST}\n')
