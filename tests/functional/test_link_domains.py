# SPDX-License-Identifier: Apache-2.0
"""Links between cards, which the operator's link_domains file declares."""

import pathlib

import fixtures
from nova import context
from nova import objects

from nova_accel.core import model
from nova_accel.core.placement import host_summary
from tests.functional import cloud
from tests.functional import test_affinity

_PAIR = ('0000:43:00.0', '0000:44:00.0')


class Reported:
    """A mixin of cloud.Cloud."""

    def said(self):
        """Return the links that the host reports to the scheduler."""
        self._run_periodics()
        node = objects.ComputeNode.get_first_node_by_host_for_old_compat(
            context.get_admin_context(), 'compute1')
        return host_summary.loads(node.stats[host_summary.KEY], node.uuid)


class LinkDomainsTest(Reported, cloud.Cloud):

    DEVICE_SPEC = (cloud.GPU_SPEC,)

    def setUp(self):
        self.file = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path) / 'links.yaml'
        super().setUp()
        self.flags(link_domains=str(self.file), group='nova_accel')

    def complaints(self):
        return self.stdlog.logger.output.count('[nova_accel] link_domains')

    def test_file_is_added_broken_and_removed(self):
        self.start_compute('compute1')
        offered = set(self.said().places)
        self.assertEqual(8, len(offered))
        self.assertEqual(set(), offered - {
            provider['uuid'] for provider in self.providers().values()})
        # The file is named but missing, which is logged once.
        self.assertEqual(1, self.complaints())
        self.assertIn(f'[nova_accel] link_domains, {self.file}: cannot be '
                      'read (No such file', self.stdlog.logger.output)

        pair = model.Links(partitions=(frozenset(_PAIR),))
        self.file.write_text(f'partitions: [{{devices: [{_PAIR[0]}, '
                             f'{_PAIR[1]}]}}]')
        self.assertEqual(pair, self.said().links)
        self.assertEqual(1, self.complaints())

        self.file.write_text('partitions: [')
        broken = self.said()
        self.assertEqual(model.Links(), broken.links)
        self.assertEqual(offered, set(broken.places))
        self.assertEqual(2, self.complaints())
        self.said()
        self.assertEqual(2, self.complaints())
        self.boot(self.flavor(self.gpu_profile('two', 2).stem))
        self.assertEqual(2, len(self.held()))

    def test_server_with_joined_cards(self):
        # The cards are on different nodes, so only the rule can choose them.
        joined = {'0000:43:00.0', '0000:88:00.0'}
        self.file.write_text(f'islands: [{{devices: {sorted(joined)}}}]')
        self.start_compute('compute1')
        self.gpu_profile('joined', 2, numa='off',
                         affinity=[{'same': 'link_domain'}])
        flavor = self.flavor('joined')
        self.assertEqual(joined, set(self.hostdevs(self.boot(flavor))))
        self.boot(flavor, state='ERROR')
        self.assertIn('has no valid host for joined: same link_domain: ',
                      self.stdlog.logger.output)

    def test_broken_pair_is_used_before_a_whole_one(self):
        # One partition has all GPUs. Each pair has GPUs of both nodes.
        gpus = [f'0000:{bus}:00.0' for bus in test_affinity.NODES]
        pairs = [{gpus[index], gpus[index + 4]} for index in range(4)]
        self.file.write_text('partitions: [' + ', '.join(
            f'{{devices: {sorted(one)}}}' for one in (gpus, *pairs)) + ']')
        self.start_compute('compute1')
        flavor = self.flavor(self.gpu_profile('one', 1, numa='off').stem)
        first, second = (set(self.hostdevs(self.boot(flavor)))
                         for _time in range(2))
        self.assertIn(first | second, pairs)
