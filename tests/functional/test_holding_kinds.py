# SPDX-License-Identifier: Apache-2.0
"""mdevs, vGPU types and FPGA regions of servers that have no domain.

Other servers ask for another type, or for another bitstream. With these, the
device of the first server would be lost.
"""

import ddt
from nova.policies import base as policies
from nova.policies import servers as server_policies

from tests.functional import fpga
from tests.functional import hypervisor
from tests.functional import test_fpga
from tests.functional import test_mdev
from tests.functional import test_vgpu
from tests.functional import withheld

_SITUATIONS = ('fail_rebuild', 'fail_definition', 'undefine')


@ddt.ddt
class VgpuTest(withheld.Keeping, test_vgpu.Vgpus):

    @ddt.data(*_SITUATIONS)
    def test_type_is_kept(self, situation):
        server = self.boot(self.small)
        had = self.has(server)
        getattr(self, situation)(server)
        self.rounds()
        self.assertEqual('ERROR', self.outcome(self.large))
        self.reboot(server)
        self.assertEqual(had, self.has(server))

    def test_type_of_a_soft_deleted_server_is_kept(self):
        self.flags(reclaim_instance_interval=3600)
        server = self.boot(self.small)
        had = self.has(server)
        self.api.delete_server(server['id'])
        self._wait_for_state_change(server, 'SOFT_DELETED')
        self.undefine(server)
        self.rounds()
        self.assertEqual('ERROR', self.outcome(self.large))
        self.api.post_server_action(server['id'], {'restore': {}})
        self._wait_for_state_change(server, 'ACTIVE')
        self.assertEqual(had, self.has(server))

    def test_type_is_kept_after_a_move_that_failed_here(self):
        other = self.start_machine('compute2')
        server = self.boot(self.small, host='compute1')
        with hypervisor.without_guests():
            self.attempt(self._migrate_server, server)
        self.flags(host='compute1')
        self.rounds()
        self.api.put_service(self.computes['compute1'].service_ref.uuid,
                             {'status': 'disabled'})
        self.assertEqual('ERROR', self.outcome(self.large))
        self.flags(host='compute2')
        self.reboot(server)
        [address] = self.hostdevs(server, 'compute2')
        self.assertEqual({address: 1154}, other.current())


@ddt.ddt
class MdevTest(withheld.Keeping, test_mdev.Mdevs):

    @ddt.data(*_SITUATIONS)
    def test_mdev_is_kept(self, situation):
        self.offer_another_type()
        server = self.boot(self.vgpu)
        had = self.hostdevs(server)
        getattr(self, situation)(server)
        self.rounds(1)
        self.background.wait()
        self.rounds(1)
        small = self.small()
        self.assertEqual(
            ['ACTIVE'] * 3 + ['ERROR'],
            [self.outcome(small) for _number in range(4)])
        self.reboot(server)
        self.assertKeeps(server, had)


class Regions(withheld.Keeping, test_fpga.Fpgas):
    """Base of test cases with two bitstreams for one region."""

    def setUp(self):
        super().setUp()
        for image, function in ((test_fpga.IMAGE, test_fpga.CRYPTO),
                                (test_fpga.OTHER_IMAGE, test_fpga.STREAM)):
            self.image(fpga.bitstream(function), image=image, properties={
                'accel:function_id': function})


@ddt.ddt
class RegionTest(Regions):

    def setUp(self):
        super().setUp()
        self.flags(allow_resize_to_same_host=True)
        self.offer_shared()
        self.server = self.boot(self.with_bitstream(test_fpga.IMAGE))
        self.had = self.hostdevs(self.server)

    def outcome_of_other(self):
        return self.outcome(self.with_bitstream(test_fpga.OTHER_IMAGE))

    @ddt.data(*_SITUATIONS)
    def test_region_is_not_programmed(self, situation):
        getattr(self, situation)(self.server)
        self.rounds(1)
        self.assertEqual('ERROR', self.outcome_of_other())
        self.reboot(self.server)
        self.assertKeeps(self.server, self.had)

    def test_region_is_not_programmed_before_a_revert(self):
        self._resize_server(self.server, self.flavor())
        self.rounds(1)
        self.assertEqual('ERROR', self.outcome_of_other())
        self.revert(self.server)
        self.assertKeeps(self.server, self.had)


class RegionCellsTest(Regions):

    NUMBER_OF_CELLS = 2

    def test_region_is_not_programmed_before_a_revert(self):
        self.policy.set_rules({
            server_policies.CROSS_CELL_RESIZE: policies.RULE_ADMIN_API},
            overwrite=False)
        entry = {'vendor_id': '8086', 'product_id': '09c5', 'program': [
            self.kernel.command('show $1 $2'), '{address}', '{bitstream}']}
        self.offer(entry)
        self.start_compute('compute1', cell_name='cell1')
        server = self.boot(self.with_bitstream(test_fpga.IMAGE))
        had = self.hostdevs(server)
        self.offer()
        self.start_compute('compute2', cell_name='cell2')
        self.offer(entry)
        self._resize_server(server, self.flavor())
        # Both computes share one CONF.host.
        self.flags(host='compute1')
        self.rounds(1)
        self.assertEqual('ERROR', self.outcome(
            self.with_bitstream(test_fpga.OTHER_IMAGE), 'compute1'))
        self.revert(server)
        self.assertKeeps(server, had)
