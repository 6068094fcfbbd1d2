# SPDX-License-Identifier: Apache-2.0
"""``isolation = strict`` of running nova-computes, and profiles for it."""

import json

import ddt

from nova_accel.core import naming
from nova_accel.host import operations
from tests.functional import cleaner
from tests.functional import cloud
from tests.functional import kernel
from tests.functional import test_fpga
from tests.functional import test_mdev
from tests.functional import test_openstack
from tests.functional import test_reset

_GOOD, _BAD = test_reset.GPUS[:2]


def _spec(address, **more):
    return json.dumps({**json.loads(cloud.GPU_SPEC), 'address': address,
                       **more})


class Strict(cloud.Cloud):
    """Base of test cases that switch the option."""

    def set_isolation(self, value):
        self.flags(isolation=value, group='nova_accel')
        self._run_periodics()


@ddt.ddt
class SwitchTest(Strict, test_reset.Reset, test_openstack.OpenstackCase):
    """Two GPUs; the entry of one says if_possible."""

    entries = (_spec(_GOOD), _spec(_BAD, reset='if_possible'))
    functions = (_GOOD, _BAD)

    def setUp(self):
        super().setUp()
        self.write_profile('strict', groups=[{
            'resources': {cloud.GPU: 1},
            'traits': {naming.STRICT_TRAIT: 'required'}}])
        self.strict = self.flavor('strict')
        self.start_compute('compute1')

    def states(self):
        return {address: (row['Status'], row['Reason'])
                for address, row in self.devices().items()}

    def fits(self, *profiles):
        """Return how many more servers fit with each profile."""
        found = {row['Profile']: row['Fits'] for row in self.openstack.run(
            'accel capacity list', '--by', 'profile', '--profile-dir',
            self.profiles)}
        return tuple(map(found.get, profiles))

    def test_switched_on_and_off(self):
        self.assertEqual(dict.fromkeys(self.functions, ('free', [])),
                         self.states())
        self.set_isolation('strict')
        self.assertEqual({_GOOD: ('free', []),
                          _BAD: ('withheld', ['not strict'])}, self.states())
        self.assertEqual(1, self.said(
            f'Not offered: {_BAD} (10de:2330): isolation = strict refuses it: '
            'its entry says "reset": "if_possible"; take reset out'))
        self.assertEqual([_GOOD], list(self.hostdevs(self.boot(self.gpu))))
        self.boot(self.gpu, state='ERROR')
        self.set_isolation('standard')
        self.assertEqual([_BAD], list(self.hostdevs(self.boot(self.gpu))))

    def test_server_keeps_its_device(self):
        servers = [self.boot(self.gpu) for _gpu in self.functions]
        had = [self.hostdevs(server) for server in servers]
        self.set_isolation('strict')
        for action in (self._run_periodics,
                       lambda: self.restart_compute_service('compute1')):
            action()
            for server in servers:
                self._reboot_server(server, hard=True)
            self.assertEqual(had, [*map(self.hostdevs, servers)])
        for server in servers:
            self._delete_server(server)
        self._run_periodics()
        # A device that it refuses is reset nevertheless.
        self.assertEqual(set(self.functions), set(self.kernel.resets[2:]))
        self.assertEqual({'free', 'withheld'}, {
            status for status, _reason in self.states().values()})

    @ddt.data({}, {'host': 'compute1'})
    def test_profile_requires_it(self, where):
        self.boot(self.strict, state='ERROR', **where)
        self.set_isolation('strict')
        self.assertEqual(
            [[naming.STRICT_TRAIT], []],
            [sorted(trait for trait in self._get_provider_traits(
                self.providers()[f'compute1_accel_{address}']['uuid'])
                if 'STRICT' in trait and 'NOT' not in trait)
             for address in self.functions])
        server = self.boot(self.strict, **where)
        self.assertEqual([_GOOD], list(self.hostdevs(server)))
        self.boot(self.strict, state='ERROR', **where)
        # It keeps its device without the promise.
        self.set_isolation('standard')
        self._reboot_server(server, hard=True)
        self.assertEqual([_GOOD], list(self.hostdevs(server)))

    def test_trait_is_shown_and_counted(self):
        self.set_isolation('strict')
        rows = self.devices('--long')
        self.assertIn(naming.STRICT_TRAIT, rows[_GOOD]['Traits'])
        self.assertNotIn(naming.STRICT_TRAIT, rows[_BAD]['Traits'])
        self.assertEqual((1, 1), self.fits('strict', 'gpu'))
        self.set_isolation('standard')
        self.assertEqual((0, 2), self.fits('strict', 'gpu'))


class MdevTest(Strict, test_mdev.Mdevs):

    def test_server_keeps_its_mdev(self):
        server = self.boot(self.vgpu)
        before = self.mdevs()
        self.set_isolation('strict')
        self.boot(self.vgpu, state='ERROR')
        for uuid in before:
            operations.Operations(f'{self.machine}/sys').remove_mdev(uuid)
        self.domain(server).destroy()
        self.restart_compute_service('compute1')
        self._reboot_server(server, hard=True)
        self.assertEqual(before, self.mdevs())


class FpgaTest(Strict, test_fpga.Fpgas):
    """A region that two servers can share."""

    def setUp(self):
        super().setUp()
        self.flags(isolation='strict', group='nova_accel')
        self.cleaner = self.useFixture(cleaner.Cleaner())
        self.flags(cleaner=[self.cleaner.option], group='nova_accel')
        self.useFixture(cloud.BackgroundWork())
        self.useFixture(kernel.Functions(self.machine)).offer_reset(
            '0000:45:00.1', '0000:45:00.2')

    def test_region_without_a_cleaner_is_refused(self):
        flavor = self.offer_crypto()
        self.boot(flavor, state='ERROR')
        self.assertIn('it can be programmed, and a reset clears neither',
                      self.said())
        self.set_isolation('standard')
        server = self.boot(flavor)
        had = self.hostdevs(server)
        self.set_isolation('strict')
        self.restart_compute_service('compute1')
        self._reboot_server(server, hard=True)
        self.assertEqual(had, self.hostdevs(server))

    def test_region_is_shared_only_by_servers_of_a_project(self):
        flavor = self.offer_crypto(clean='wipe')
        plain = self.with_function(test_fpga.CRYPTO)
        first = self.boot(flavor)
        for wanted in flavor, plain:
            self._run_periodics()
            self.boot_as('rival', wanted, state='ERROR')
            self.assertIn('isolation is strict, and servers of other projects '
                          'have a part of the same region: ' + first['id'],
                          self.said())
        self.restart_compute_service('compute1')
        second = self.boot(flavor)
        self._reboot_server(first, hard=True)
        self.assertEqual(1, len(self.kernel.by_command()))
        for server in first, second:
            self._delete_server(server)
        for _round in range(3):
            self._run_periodics()
        self.boot_as('rival', flavor)
        self.assertEqual(2, len(self.kernel.by_command()))
        self.assertEqual(['clean 0000:45:00.0', 'verify 0000:45:00.0'],
                         self.cleaner.calls())

    def test_sharing_from_before_is_kept(self):
        self.set_isolation('standard')
        flavor = self.offer_crypto(clean='wipe')
        servers = [self.boot(flavor), self.boot_as('rival', flavor)]
        self.set_isolation('strict')
        for server in servers:
            self._reboot_server(server, hard=True)
        self.assertEqual(1, len(self.kernel.by_command()))
