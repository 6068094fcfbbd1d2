# SPDX-License-Identifier: Apache-2.0
"""The periodic tasks run at each step of an operation.

They must release, reset and give away nothing of the server.
"""

import contextlib
import copy
import pkgutil

import ddt
import fixtures

from tests.functional import cloud
from tests.functional import hypervisor
from tests.functional import kernel
from tests.functional import test_kept_claims
from tests.functional import withheld

_STEPS = tuple(f'nova.virt.libvirt.{name}' for name in (
    'driver.LibvirtDriver.cleanup', 'driver.LibvirtDriver._undefine_domain',
    'driver.LibvirtDriver._destroy', 'driver.LibvirtDriver._get_guest_xml',
    'guest.Guest.launch', 'host.Host.write_instance_config'))


class Rounds:
    """Mixin for :class:`cloud.Cloud`: rounds within operations."""

    @contextlib.contextmanager
    def rounds_at(self, *steps):
        """Run our periodic tasks before and after these methods of Nova."""
        with contextlib.ExitStack() as stack:
            for name in steps:
                stack.enter_context(fixtures.MonkeyPatch(
                    name, self._wrapped(name)))
            yield

    def _wrapped(self, name):
        owner, _dot, method = name.rpartition('.')
        theirs = getattr(pkgutil.resolve_name(owner), method)

        def call(*args, **kwargs):
            self.round(f'before {method}')
            try:
                return theirs(*args, **kwargs)
            finally:
                self.round(f'after {method}')
        return call

    def round(self, when):
        driver = self.computes['compute1'].driver
        driver.get_available_resource('compute1')
        driver.update_provider_tree(copy.deepcopy(driver.provider_tree),
                                    'compute1')


@ddt.ddt
class VfTest(Rounds, test_kept_claims.VfCase):

    def setUp(self):
        super().setUp()
        self.background = self.useFixture(cloud.BackgroundWork())
        self.rounds()
        self.background.wait()
        self.reset = []

    def prepare_machine(self):
        self.kernel = self.useFixture(kernel.Functions(
            self.directory_host(cloud.A100)))
        self.kernel.offer_reset(*(f'0000:44:00.{n}' for n in (4, 5, 6, 7)))

    def round(self, when):
        before = len(self.kernel.resets)
        super().round(when)
        self.background.wait()
        self.reset.extend((when, address) for address
                          in self.kernel.resets[before:]
                          if address in self.had)

    @ddt.data('rebuild', 'reboot', 'resize', 'fail_to_revert',
              'fail_to_resume')
    def test_operation(self, operation):
        self._check(operation)

    @ddt.data('rebuild', 'reboot')
    def test_operation_after_allocations_were_lost(self, operation):
        self.placement.delete(f'/allocations/{self.server["id"]}')
        self._check(operation)

    def _check(self, operation):
        getattr(self, operation)()
        self.assertEqual([], self.reset)
        self.assertKeeps(self.server, self.had)
        self.rounds()
        self.assertEqual([], self.files())

    def rebuild(self):
        with self.rounds_at(*_STEPS):
            self.attempt(self._rebuild_server, self.server, cloud.IMAGE)

    def reboot(self):
        with self.rounds_at(*_STEPS):
            super().reboot(self.server)

    def resize(self):
        with self.rounds_at(*_STEPS):
            self.attempt(self._resize_server, self.server, self.one)
            self.revert(self.server)

    def fail_to_revert(self):
        self._resize_server(self.server, self.plain)
        with self.rounds_at(*_STEPS), hypervisor.without_guests():
            self.revert(self.server)
        self.rounds()
        self.restart_compute_service('compute1')
        self.rounds()
        super().reboot(self.server)

    def fail_to_resume(self):
        self._suspend_server(self.server)
        with self.rounds_at(*_STEPS), hypervisor.without_guests():
            self.attempt(self._resume_server, self.server)
        self.rounds()
        super().reboot(self.server)


class AllocationsElsewhereTest(Rounds, withheld.WithheldCase):
    """Allocations of a server name devices of another host."""

    def test_rebuild(self):
        for host in ('compute1', 'compute2'):
            self.start_compute(host)
        self.flags(host='compute1')
        there = self.boot(self.two, host='compute2')
        others = self._allocations(there)['allocations']
        self._delete_server(there)
        server = self.boot(self.two, host='compute1')
        had = self.hostdevs(server)
        self.placement.put(
            f'/allocations/{server["id"]}', self._allocations(server) | {
                'allocations': {provider: {'resources': found['resources']}
                                for provider, found in others.items()}},
            version='1.28')
        with self.rounds_at(
                'nova.virt.libvirt.driver.LibvirtDriver._undefine_domain'):
            self.attempt(self._rebuild_server, server, cloud.IMAGE)
        self.assertKeeps(server, had)

    def _allocations(self, server):
        return self.placement.get(f'/allocations/{server["id"]}',
                                  version='1.28').body
