# SPDX-License-Identifier: Apache-2.0
"""Keystone and Placement, simulated with requests_mock."""

from keystoneauth1 import fixture
import requests_mock

KEYSTONE = 'http://keystone.test/v3'
PLACEMENT = 'http://placement.test'

#: The section of nova.conf with the options to reach Keystone and Placement.
CONF = f"""
[placement]
auth_type = password
auth_url = {KEYSTONE}
username = nova
password = secret
project_name = service
user_domain_name = Default
project_domain_name = Default
region_name = RegionOne
"""


class Services:
    """A simulated Keystone. Its catalogue lists Placement.

    :param mock: requests_mock.Mocker
    """

    def __init__(self, mock):
        self.mock = mock
        token = fixture.V3Token()
        token.set_project_scope()
        service = token.add_service('placement')
        service.add_standard_endpoints(public=PLACEMENT, region='RegionOne')
        mock.get(KEYSTONE, json={'version': fixture.V3Discovery(KEYSTONE)})
        mock.post(f'{KEYSTONE}/auth/tokens', json=token,
                  headers={'X-Subject-Token': 'a token'})
        mock.get(PLACEMENT, json={'versions': [{
            'id': 'v1.0', 'min_version': '1.0', 'max_version': '1.39',
            'status': 'CURRENT', 'links': [{'rel': 'self', 'href': ''}]}]})

    def fail(self, url, error):
        self.mock.register_uri(requests_mock.ANY, url, exc=error)
