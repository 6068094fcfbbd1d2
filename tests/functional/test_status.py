# SPDX-License-Identifier: Apache-2.0
"""``nova-accel-status upgrade check`` with a real Placement."""

import contextlib
import io
import json
import pathlib
import tempfile

from nova_accel.cmd import status
from nova_accel.core import naming
from tests.functional import cloud
from tests.functional import openstack


class StatusTest(cloud.Cloud):

    def check(self):
        """Return the result and the details of the Placement check."""
        with tempfile.TemporaryDirectory() as folder:
            conf = pathlib.Path(folder, 'nova.conf')
            conf.write_text(f"""
[placement]
auth_type = admin_token
endpoint = {self.placement_fixture.endpoint}
token = admin:{openstack.PROJECT}
""")
            with contextlib.redirect_stdout(io.StringIO()) as out:
                status.main(['--config-file', str(conf), 'upgrade', 'check',
                             '--json'])
        [found] = [found for found in json.loads(out.getvalue())['checks']
                   if 'Placement' in found['check']]
        return found['result'], found['details']

    def change(self, host, what, change):
        """Change the inventories or traits of a provider in Placement."""
        [provider] = self.placement.get(
            f'/resource_providers?name={host}').body['resource_providers']
        path = f'/resource_providers/{provider["uuid"]}/{what}'
        body = self.placement.get(path, version='1.6').body
        change(body[what])
        self.assertEqual(200, self.placement.put(
            path, body, version='1.6').status)

    def test_compute_nodes_of_an_older_version_are_named(self):
        current = 0, 'each nova-compute with devices runs this nova_accel'
        self.assertEqual(current, self.check())
        for name in ('compute1', 'compute2', 'compute3'):
            self.start_compute(name)
        self.assertEqual(current, self.check())
        self.change('compute2', 'inventories',
                    lambda known: known.pop(naming.HOST_CLASS))
        self.change('compute3_accel_0000:43:00.0', 'traits',
                    lambda known: known.remove(
                        'CUSTOM_NOVA_ACCEL_PCI_10DE_2330'))
        result, details = self.check()
        self.assertEqual(
            (1, 'compute nodes compute2, compute3: nova-compute runs an older '
             'nova_accel there'), (result, details.partition(';')[0]))
