# SPDX-License-Identifier: Apache-2.0
"""Placement, configured as the installation guide says."""

from concurrent import futures
import uuid

_CLASS = 'CUSTOM_CLAIMED'
_PAIRS = 20


def test_a_unit_is_never_allocated_twice(cloud):
    """Without the option of the guide, most pairs get it twice."""
    placement = cloud.connection.placement

    def call(method, path, body=None):
        return getattr(placement, method)(path, json=body,
                                          microversion='1.36')

    def claim(provider, consumer):
        return call('put', f'/allocations/{consumer}', {
            'allocations': {provider: {'resources': {_CLASS: 1}}},
            'project_id': cloud.connection.current_project_id,
            'user_id': cloud.connection.current_user_id,
            'consumer_generation': None}).status_code

    call('put', f'/resource_classes/{_CLASS}')
    with futures.ThreadPoolExecutor(2) as pool:
        for _pair in range(_PAIRS):
            provider, *consumers = (str(uuid.uuid4()) for _uuid in range(3))
            call('post', '/resource_providers',
                 {'uuid': provider, 'name': provider})
            call('put', f'/resource_providers/{provider}/inventories', {
                'resource_provider_generation': 0,
                'inventories': {_CLASS: {'total': 1}}})
            assert sorted(pool.map(claim, [provider] * 2, consumers)) == [
                204, 409]
            for consumer in consumers:
                call('delete', f'/allocations/{consumer}')
            call('delete', f'/resource_providers/{provider}')
    call('delete', f'/resource_classes/{_CLASS}')
