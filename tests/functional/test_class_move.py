# SPDX-License-Identifier: Apache-2.0
"""Servers move from a resource class per model to one class, as they run."""

import json

import fixtures

from nova_accel.core import errors
from tests.functional import cloud

_OLD, _NEW, _OTHER = cloud.GPU, 'CUSTOM_GPU', 'CUSTOM_GPU_OTHER'
_MOVES = {_OLD: _NEW, _OTHER: _NEW}
_PAIRS = {_OLD: '4[34]', _OTHER: '8[34]'}


def _entries(resource_class=None):
    """Return the entries of two pairs of GPUs: one class, or one for each."""
    return [json.dumps({
        'vendor_id': '10de', 'address': {'bus': bus},
        'resource_class': resource_class or name,
        'traits': [name] if resource_class else []})
        for name, bus in _PAIRS.items()]


class ClassMoveTest(cloud.Cloud):

    DEVICE_SPEC = tuple(_entries())

    def setUp(self):
        super().setUp()
        self.flags(allow_resize_to_same_host=True)
        self.start_compute('compute1')
        self.profile('old', {_OLD: 1})
        self.profile('two', {_OLD: 1}, count=2)
        self.profile('other', {_OTHER: 1})

    def profile(self, name, resources, **group):
        self.write_profile(name, groups=[
            {'resources': resources, 'numa': 'off', **group}])
        return name

    def switch(self, *hosts):
        """Give the hosts the new class, as the operator does."""
        self.flags(device_spec=_entries(_NEW), moved_classes=_MOVES,
                   group='nova_accel')
        for host in hosts or ('compute1',):
            self.restart_compute_service(host)
        self.rounds()

    def rounds(self):
        for _round in range(3):
            self._run_periodics()

    def check_moved(self, server, count=1, trait=_OLD, host='compute1'):
        allocated = self.allocated(server)
        self.assertEqual([{_NEW: 1}] * count, [*allocated.values()])
        self.assertEqual(
            {name.rpartition('_')[2] for name in allocated},
            set(self.hostdevs(server, host)))
        specs = self.api.get_server(server['id'])['flavor']['extra_specs']
        self.assertEqual(str(count), specs[f'resources_ACCEL0:{_NEW}'])
        self.assertEqual('required', specs[f'trait_ACCEL0:{trait}'])
        self.assertNotIn(f'resources_ACCEL0:{_OLD}', specs)
        self.assertEqual([], self.disagreements(host))

    def usages(self):
        """Return the units in use in the project, by class of devices."""
        answer = self.ask_placement(
            '/usages?project_id=6f70656e737461636b20342065766572')['usages']
        return {name: amounts for name, amounts in answer.items()
                if name in (_OLD, _NEW, _OTHER) and amounts}

    def test_servers_that_run(self):
        pair, other = self.boot(self.flavor('two')), self.boot(
            self.flavor('other'))
        held = self.hostdevs(pair), self.hostdevs(other)
        self.switch()
        self.assertEqual(held, (self.hostdevs(pair), self.hostdevs(other)))
        self.check_moved(pair, 2)
        self.check_moved(other, trait=_OTHER)
        self.assertEqual({_NEW: 3}, self.usages())
        self.assertEqual({_NEW: 4}, self._get_provider_inventory_totals())
        self._reboot_server(pair, hard=True)
        self.assertEqual(held[0], self.hostdevs(pair))
        # A flavor that still asks for the class of before.
        last = self.boot(self.flavor('other'))
        self.rounds()
        self.check_moved(last, trait=_OTHER)
        self.boot(self.flavor('other'), 'ERROR')
        for server in (pair, other, last):
            self._delete_server(server)
        self.assertEqual({}, self.usages())

    def _get_provider_inventory_totals(self):
        return {name: record['total'] for name, record in
                self._get_provider_inventory(
                    self.class_provider(_NEW)).items()}
