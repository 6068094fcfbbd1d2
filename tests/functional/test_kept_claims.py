# SPDX-License-Identifier: Apache-2.0
"""VFs of servers that have no domain.

The VFs of a card have one resource provider. Allocations tell how many of them
a server has; its claim tells which.
"""

import contextlib
import errno
import json
import pathlib
import pkgutil

import ddt
import fixtures
from nova.tests.fixtures import libvirt as fakelibvirt

from nova_accel.compute import driver
from nova_accel.compute.state import libvirt_domains
from nova_accel.core import errors
from tests.functional import cloud
from tests.functional import hypervisor
from tests.functional import withheld

VFS = '{"address": "0000:44:00.*", "resource_class": "CUSTOM_GPU_H100"}'


class VfCase(withheld.WithheldCase):
    """Base of tests with a server that has the second of four VFs."""

    DEVICE_SPEC = (VFS,)

    def setUp(self):
        super().setUp()
        self.prepare_machine()
        self.start_compute('compute1')
        self.gpu_profile('three', count=3, numa='off')
        first = self.boot(self.one)
        self.server = self.boot(self.one)
        self._delete_server(first)
        self.had = self.hostdevs(self.server)

    def prepare_machine(self):
        self.flags(sysfs_root=str(cloud.A100), group='nova_accel')

    def files(self):
        """Return the files of claims."""
        return sorted(pathlib.Path(self.state_path).rglob('*.json'))

    def assertApart(self, *servers):
        """Check that no two servers have the same VF."""
        found = [address for server in servers
                 for address in self.hostdevs(server)]
        self.assertEqual(sorted(set(found)), sorted(found))

    def assertFree(self, number):
        """Check that new servers can have this many VFs, and no more."""
        outcomes = [self.outcome(self.one) for _server in range(number + 1)]
        self.assertEqual(['ACTIVE'] * number + ['ERROR'], outcomes)


@ddt.ddt
class ResizeTest(VfCase):

    @ddt.data('choice', 'guest')
    def test_failed_resize_leaves_no_claim(self, fails):
        """Nova deletes the allocations of the migration."""
        failure = hypervisor.without_guests() if fails == 'guest' else (
            fixtures.MockPatch('nova_accel.compute.allocator.Allocator.'
                               'for_move', side_effect=RuntimeError('no')))
        with failure:
            self.attempt(self._resize_server, self.server, self.two)
        self.rounds()
        self.reboot(self.server)
        self.rounds()
        self.assertEqual(2, len(self.hostdevs(self.server)))
        self.assertEqual([], self.files())
        self.assertFree(2)

    def test_server_that_had_no_domain_before(self):
        self.fail_rebuild(self.server)
        self.set_active(self.server)
        self.attempt(self._resize_server, self.server, self.two)
        other = self.boot(self.one)
        self.assertNotIn(*self.had, self.hostdevs(other))
        self.revert(self.server)
        self.assertKeeps(self.server, self.had)

    def test_revert_fails_after_the_new_domain_is_gone(self):
        self._resize_server(self.server, self.two)
        has = self.hostdevs(self.server)
        with failing_after(
                'nova.virt.libvirt.driver.LibvirtDriver._undefine_domain'):
            self.attempt(self._revert_resize, self.server)
        self.rounds()
        rival = self.boot(self.one)
        self.reboot(self.server)
        self.assertApart(self.server, rival)
        self.assertIn(set(self.hostdevs(self.server)),
                      (set(has), set(self.had)))

    def test_server_is_deleted_before_the_confirm(self):
        self._resize_server(self.server, self.two)
        self.restart_compute_service('compute1')
        self._delete_server(self.server)
        self.rounds()
        self.assertEqual([], self.files())
        self.assertFree(4)

    def test_placement_is_down_during_the_confirm(self):
        self._resize_server(self.server, self.two)
        has = self.hostdevs(self.server)
        with self.no_placement():
            self.attempt(self._confirm_resize, self.server)
            self.rounds(1)
        self.rounds()
        self.set_active(self.server)
        self.reboot(self.server)
        self.assertKeeps(self.server, has)


@ddt.ddt
class FilesTest(VfCase):

    def test_libvirt_is_down_when_nova_compute_starts(self):
        self.fail_rebuild(self.server)
        with self.libvirt_down_at_the_start():
            self.restart_compute_service('compute1')
        self.rounds()
        others = [self.boot(self.one) for _server in range(3)]
        self.reboot(self.server)
        self.assertKeeps(self.server, self.had)
        self.assertApart(self.server, *others)

    @contextlib.contextmanager
    def libvirt_down_at_the_start(self):
        start = driver.LibvirtDriver.init_host

        def init_host(*args, **kwargs):
            with fixtures.MockPatchObject(
                    libvirt_domains.LibvirtDomains, 'read', side_effect=(
                        errors.AssignmentError('domain x', 'is not there'))):
                start(*args, **kwargs)

        with fixtures.MonkeyPatch(
                'nova_accel.compute.driver.LibvirtDriver.init_host',
                init_host):
            yield

    def test_file_cannot_be_removed(self):
        """The server leaves, others get its VFs, and it comes back."""
        self.fail_rebuild(self.server)
        with fixtures.MockPatchObject(pathlib.Path, 'unlink', side_effect=(
                OSError(errno.EROFS, 'Read-only file system'))):
            self.reboot(self.server)
        self.assertKeeps(self.server, self.had)
        self.flags(shelved_offload_time=0)
        self._shelve_server(self.server, expected_state='SHELVED_OFFLOADED')
        others = [self.boot(self.one) for _server in range(3)]
        self._unshelve_server(self.server)
        for server in others:
            self._stop_server(server)
        self.restart_compute_service('compute1')
        self.rounds()
        self.reboot(self.server)
        self.assertApart(self.server, *others)

    @ddt.data(None, 'ua-x')
    def test_file_is_damaged(self, alias):
        self.fail_rebuild(self.server)
        [path] = self.files()
        record = json.loads(path.read_text())
        record['hostdevs'][0]['alias'] = alias
        path.write_text(json.dumps(record))
        self.restart_compute_service('compute1')
        self.rounds()
        self.reboot(self.server)
        self.rounds()
        self.assertEqual(1, len(self.hostdevs(self.server)))
        self.assertEqual([], self.files())
        self.assertFree(3)

    def test_disk_is_full(self):
        with fixtures.MockPatch('os.fsync', side_effect=OSError(
                errno.ENOSPC, 'No space left on device')):
            self.fail_rebuild(self.server)
            self.rounds()
            self.reboot(self.server)
        self.assertKeeps(self.server, self.had)

    def test_rebuilds_and_restarts(self):
        for _rebuild in range(2):
            self.fail_rebuild(self.server)
            self.restart_compute_service('compute1')
        self.boot(self.flavor('three'))
        self.reboot(self.server)
        self.assertKeeps(self.server, self.had)
        self.assertEqual([], self.files())


@ddt.ddt
class LiveMigrationTest(withheld.Keeping, cloud.Cloud):
    """The destination restarts before libvirt moves the guest."""

    DEVICE_SPEC = (VFS[:-1] + ', "live_migratable": "yes"}',)

    def setUp(self):
        super().setUp()
        self.flags(sysfs_root=str(cloud.A100), group='nova_accel')
        for host in ('compute1', 'compute2'):
            self.start_compute(host)
        self.gpu_profile('one', numa='off')
        self.one = self.flavor('one')

    @ddt.data(True, False)
    def test_restart(self, is_moved):
        server = self.boot(self.one, host='compute1')
        rivals = []

        def restart(_domain, _xml):
            self.migration.on_move = lambda domain, xml: None
            self.restart_compute_service('compute2')
            rivals.append(self.boot(self.one, host='compute2'))
            if not is_moved:
                raise fakelibvirt.make_libvirtError(
                    fakelibvirt.libvirtError, 'no')

        self.migration.on_move = restart
        self.attempt_live_migration(server)
        self.rounds()
        held = self.held('compute2')
        self.assertEqual(2 if is_moved else 1, len(held))
        self.assertEqual([], [address for address, servers in held.items()
                              if len(servers) > 1])
        self.assertEqual('ACTIVE', self.outcome(self.one, 'compute2'))


@contextlib.contextmanager
def failing_after(name):
    """Let a method fail when it has done its work."""
    owner, _dot, method = name.rpartition('.')
    theirs = getattr(pkgutil.resolve_name(owner), method)

    def fail(*args, **kwargs):
        theirs(*args, **kwargs)
        raise RuntimeError('no')

    with fixtures.MonkeyPatch(name, fail):
        yield
