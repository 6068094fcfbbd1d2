# SPDX-License-Identifier: Apache-2.0
"""Unified limits of Keystone, which Nova uses in place of its own quotas."""

import collections.abc
import contextlib

from tests.integration.cloud import configuration

_CONF = """
[quota]
driver = nova.quota.UnifiedLimitsDriver
[oslo_limit]
auth_type = password
auth_url = {keystone}
username = nova
password = {password}
user_domain_name = Default
system_scope = all
endpoint_id = {endpoint}
"""
_SERVICES = ('nova-api', 'nova-conductor')


@contextlib.contextmanager
def unified(cloud, limits: collections.abc.Mapping[str, int],
            ) -> collections.abc.Iterator[None]:
    """Limit each project until the context ends.

    :param limits: by the name of the resource; ``servers`` is needed
    """
    keystone = cloud.connection.identity
    nova = keystone.find_service('nova')
    endpoint = next(keystone.endpoints(service_id=nova.id,
                                       interface='public'))
    cloud.run('openstack', 'role', 'add', '--user', 'nova', '--system', 'all',
              'reader')
    made = [keystone.create_registered_limit(
        service_id=nova.id, region_id='RegionOne', resource_name=name,
        default_limit=limit) for name, limit in limits.items()]
    cloud.configure('nova', _CONF.format(
        keystone=configuration.KEYSTONE, password=configuration.PASSWORD,
        endpoint=endpoint.id), 'limits')
    cloud.restart(*_SERVICES)
    yield
    cloud.configure('nova', '', 'limits')
    cloud.restart(*_SERVICES)
    for limit in made:
        keystone.delete_registered_limit(limit)
