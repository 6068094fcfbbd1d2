# SPDX-License-Identifier: Apache-2.0
"""Partitions that the host's fabric manager lists."""

import fixtures

from nova_accel.core import model
from tests import fmpm
from tests.functional import cloud
from tests.functional import test_link_domains

_GPUS = ('0000:43:00.0', '0000:44:00.0', '0000:48:00.0')


class FabricManagerTest(test_link_domains.Reported, cloud.Cloud):

    DEVICE_SPEC = (cloud.GPU_SPEC,)

    def setUp(self):
        super().setUp()
        self.manager = fmpm.FabricManager(
            self.useFixture(fixtures.TempDir()).path,
            partitions={0: (1, 2), 1: (2, 3)})
        self.modules = dict(enumerate(_GPUS, 1))

    def configure(self):
        self.flags(group='nova_accel', fabric_manager=self.manager.option(
            modules=self.modules))

    def links(self, *sets):
        return model.Links(tuple(
            frozenset(_GPUS[place] for place in one) for one in sets))

    def complaints(self, text):
        return self.stdlog.logger.output.count(text)

    def test_list_of_the_manager_is_reported(self):
        self.configure()
        self.start_compute('compute1')
        self.assertEqual(self.links((0, 1), (1, 2)), self.said().links)
        # A GPU that has failed is in no partition. The round that asks the
        # manager has reported before.
        self.manager.set(gone=[3])
        self.said()
        self.assertEqual(self.links((0, 1)), self.said().links)
        self.manager.stop()
        self.assertEqual(self.links((0, 1)), self.said().links)
        self.said()
        self.assertEqual(1, self.complaints('Failed to connect to Fabric'))
        self.assertEqual({('-l',), ('--get-nvlink-failed-devices',)},
                         set(map(tuple, self.manager.log())))

    def test_manager_starts_after_nova_compute(self):
        self.manager.stop()
        self.configure()
        self.start_compute('compute1')
        self.assertEqual(model.Links(), self.said().links)
        self.manager.start()
        self.said()
        self.assertEqual(self.links((0, 1), (1, 2)), self.said().links)

    def test_option_is_added_and_broken(self):
        self.start_compute('compute1')
        self.assertEqual(model.Links(), self.said().links)
        self.assertEqual([], self.manager.log())
        self.configure()
        self.assertEqual(self.links((0, 1), (1, 2)), self.said().links)
        self.flags(group='nova_accel', fabric_manager='{')
        self.assertEqual(model.Links(), self.said().links)
        self.said()
        self.assertEqual(1, self.complaints(
            '[nova_accel] fabric_manager: is not JSON'))
