# SPDX-License-Identifier: Apache-2.0
"""Devices that an operator's regions file declares."""

import json
import pathlib

import fixtures

from tests.functional import cloud

_LEFT, _RIGHT = '0000:43:00.0', '0000:44:00.0'
_SPARE = '0000:48:00.0'


class DeclaredTest(cloud.Cloud):
    """A host with two GPUs in one unit, and one broken GPU."""

    def setUp(self):
        super().setUp()
        self.file = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path, 'regions.json')
        self.declare(broken='its fan')
        self.flags(device_spec=[json.dumps(
            {'kind': 'declared', 'product_id': '2330',
             'address': {'bus': '4[348]'}, 'regions_file': str(self.file)})],
            group='nova_accel')
        self.start_compute('compute1')
        self.write_profile('ring', groups=[
            {'resources': {'CUSTOM_RING': 1}}])
        self.write_profile('one', groups=[{'resources': {'CUSTOM_ONE': 1}}])
        self.ring, self.one = self.flavor('ring'), self.flavor('one')

    def declare(self, **spare):
        self.file.write_text(json.dumps({'regions': [
            {'name': 'ring', 'functions': [_LEFT, _RIGHT], 'together': True,
             'resource_class': 'CUSTOM_RING', 'traits': ['CUSTOM_FAST']},
            {'name': 'spare', 'functions': [_SPARE],
             'resource_class': 'CUSTOM_ONE', **spare}]}))

    def test_one_unit_of_two_functions(self):
        provider = self.providers()[f'compute1_accel_{_LEFT}']
        self.assertIn('CUSTOM_FAST',
                      self._get_provider_traits(provider['uuid']))
        server = self.boot(self.ring)
        self.assertEqual({f'compute1_accel_{_LEFT}': {'CUSTOM_RING': 1}},
                         self.allocated(server))
        self.assertEqual({_LEFT, _RIGHT}, set(self.hostdevs(server)))
        self.boot(self.ring, state='ERROR')
        self._delete_server(server)
        self.assertEqual({_LEFT, _RIGHT},
                         set(self.hostdevs(self.boot(self.ring))))

    def test_repaired_file_is_read_again(self):
        self.boot(self.one, state='ERROR')
        self.declare()
        self._run_periodics()
        server = self.boot(self.one)
        self.assertEqual({_SPARE}, set(self.hostdevs(server)))

    def test_file_that_breaks_while_a_server_holds_the_unit(self):
        self.declare()
        self._run_periodics()
        server = self.boot(self.one)
        self.declare(broken='its fan')
        self._run_periodics()
        self.boot(self.one, state='ERROR')
        # The server keeps the device, also after a reboot.
        self._reboot_server(server, hard=True)
        self.assertEqual({_SPARE}, set(self.hostdevs(server)))

    def test_removed_file_keeps_held_units(self):
        server = self.boot(self.ring)
        self.file.unlink()
        self._run_periodics()
        self._reboot_server(server, hard=True)
        self.assertEqual({_LEFT, _RIGHT}, set(self.hostdevs(server)))
        self.declare()
        self._run_periodics()
        self._delete_server(server)
        self.boot(self.ring)
