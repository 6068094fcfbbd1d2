# SPDX-License-Identifier: Apache-2.0
"""A server gets its devices, from the API to the XML."""

from tests.functional import cloud


class ServerTest(cloud.Cloud):

    def setUp(self):
        super().setUp()
        self.start_compute('compute1')
        self.gpu_profile('h100')

    def test_create(self):
        server = self.boot(self.flavor('h100'))
        [(address, alias)] = self.hostdevs(server).items()
        [(provider, resources)] = self.allocated(server).items()
        self.assertEqual({cloud.GPU: 1}, resources)
        self.assertEqual(f'compute1_accel_{address}', provider)
        uuid = self.providers()[provider]['uuid']
        self.assertEqual(f'ua-accel-ACCEL0-{uuid}-0', alias)
