# SPDX-License-Identifier: Apache-2.0
"""Operations after which a server has its devices again."""

import pytest

HAS = {'CUSTOM_GPU': 1, 'CUSTOM_QAT': 1, 'VGPU': 1}


def check_gpu_is_not_free(tenant, host):
    other = tenant.boot(host, 'ERROR', CUSTOM_GPU=1)
    assert 'No valid host' in other.view.fault['message']
    other.delete()


class TestLife:
    """Operations on one server, which all tests share."""

    @pytest.fixture(scope='class')
    def server(self, tenant, machine):
        server = tenant.boot(machine.host, **HAS)
        yield server
        server.delete()

    @pytest.fixture
    def still(self, server):
        """Check that the guest was not rebooted and has the same devices."""
        held, boot = server.has(**HAS), server.guest().boot
        yield server
        server.lives()
        assert server.guest().boot == boot
        assert server.has(**HAS) == held

    @pytest.fixture
    def again(self, server):
        """Check that the guest was rebooted and has the same devices."""
        held, boot = server.has(**HAS), server.guest().boot
        yield server
        server.restarted(boot)
        assert server.has(**HAS) == held

    def test_pause_and_unpause(self, still, inside):
        still.act('pause_server', status='PAUSED')
        assert inside.state(still.id) == 'paused'
        still.act('unpause_server')

    def test_soft_reboot(self, again):
        again.act('reboot_server', 'SOFT')

    def test_hard_reboot(self, again):
        again.act('reboot_server', 'HARD')

    def test_stop_and_start(self, again, tenant, machine):
        again.act('stop_server', status='SHUTOFF')
        check_gpu_is_not_free(tenant, machine.host)
        again.act('start_server')

    def test_rebuild(self, again):
        again.act('rebuild_server', image=again.view.image.id)

    def test_suspend_and_resume(self, still, tenant, machine):
        still.act('suspend_server', status='SUSPENDED')
        check_gpu_is_not_free(tenant, machine.host)
        # Nova has detached all devices. The console starts anew now, so it
        # shows only those that are attached again.
        still.act('resume_server')

    def test_shelve_and_unshelve(self, server, tenant, machine, inside):
        server.act('shelve_server', status='SHELVED_OFFLOADED',
                   meanwhile=('ACTIVE', 'SHELVED'))
        assert tenant.ledger.promised(server.id, machine.host) == ({}, {})
        assert server.id not in inside.domains()
        # The devices are free for another server.
        other = tenant.boot(machine.host, **HAS)
        other.has(**HAS)
        other.delete()
        server.act('unshelve_server', meanwhile=('SHELVED_OFFLOADED',))
        server.has(**HAS)


class TestResize:
    """On one host, the server has old and new devices until it confirms."""

    @pytest.fixture(scope='class')
    def server(self, tenant, machine):
        server = tenant.boot(machine.host, CUSTOM_QAT=1)
        yield server
        server.delete()

    @pytest.fixture
    def resized(self, server, tenant, machine):
        held = server.has(CUSTOM_QAT=1)
        server.act('resize_server', tenant.flavor(CUSTOM_QAT=3),
                   status='VERIFY_RESIZE')
        assert not set(held) & set(server.has(CUSTOM_QAT=3))
        other = tenant.boot(machine.host, 'ERROR', CUSTOM_QAT=1)
        other.delete()
        return held

    def test_revert(self, resized, server):
        server.act('revert_server_resize', meanwhile=('VERIFY_RESIZE',))
        assert server.has(CUSTOM_QAT=1) == resized

    def test_confirm(self, resized, server, tenant, machine):
        server.act('confirm_server_resize', meanwhile=('VERIFY_RESIZE',))
        server.has(CUSTOM_QAT=3)
        other = tenant.boot(machine.host, CUSTOM_QAT=1)
        assert other.has(CUSTOM_QAT=1) == resized
        other.delete()
