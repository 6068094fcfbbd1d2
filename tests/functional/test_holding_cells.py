# SPDX-License-Identifier: Apache-2.0
"""Some cells of tests.holding. Run all with ``python -m tests.holding``."""

from tests.holding import cell


class CardTest(cell.Cell):

    def test_reboot(self):
        for change in ('device drained', 'missing'):
            self.check('reboot', change, 'nova-compute killed')

    def test_failed_rebuild(self):
        self.check('reboot after a failed rebuild', 'entry removed',
                   'libvirtd down')

    def test_domain_is_gone(self):
        self.check('reboot without a domain', 'unhealthy', 'Placement down')


class AlternativesTest(cell.Cell):

    KIND = 'alternatives'
    HOSTS = cell.hosts('revert of a migration')

    def test_revert(self):
        self.check('revert of a migration', 'entry removed', 'between')


class VirtualFunctionTest(cell.Cell):

    KIND = 'vf'

    def test_revert(self):
        for change in ('class changed', 'reader blocked'):
            self.check('revert to none', change, 'between')

    def test_failed_resume(self):
        self.check('resume', 'entry removed', 'libvirtd down')
