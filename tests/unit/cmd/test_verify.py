# SPDX-License-Identifier: Apache-2.0
"""``nova-accel host verify``, on recordings and on a modelled kernel."""

import json
import platform
import sys

import pytest

from nova_accel.cmd import verify
from tests.unit import build
from tests.unit.cmd import test_check
from tests.unit.host import test_reset

ENTRY = '[nova_accel]\ndevice_spec = {"vendor_id": "10de"}\n'
ALONE, SHARED, HOSTS_OWN, OF_VFIO = (
    f'0000:{bus}:00.0' for bus in ('85', '86', '87', '88'))


@pytest.fixture
def libvirt(monkeypatch):
    module = test_check.Libvirt()
    monkeypatch.setitem(sys.modules, 'libvirt', module)
    return module


def _verify(run, root, *arguments):
    code, out, _err = run('host', 'verify', '--sysfs-root', str(root), '-f',
                          'json', *arguments, conf=ENTRY)
    return code, json.loads(out)


def test_report_of_a_recording(run):
    code, report = _verify(run, build.DATA / 'hosts' / 'l1-8gpu.json')
    assert (code, report['source'], report['kernel']) == (
        0, 'recording', None)
    assert {region['ids'] for region in report['regions']} == {'10de:2330'}
    assert len(report['regions']) == 8
    assert all('not asked for' in region['reset'] and not region['problems']
               for region in report['regions'])


def test_report_names_what_strict_isolation_refuses(run):
    _code, report = _verify(run, build.DATA / 'hosts' / 'l1-8gpu.json',
                            '--isolation', 'strict')
    assert [(refused['ids'], refused['reason'])
            for refused in report['refused']] == [(
                '10de:2330', 'isolation = strict refuses it: sysfs does not '
                'show how it is reset')] * 8


def test_report_does_not_contain_mount_points(run, tmp_path):
    disk = 'devices/pci0000:80/0000:81:00.0'
    build.sysfs({disk.removeprefix('devices/'): {'class': '0x010802\n'}}, {
        f'sys/{disk}/block/sda/dev': '8:0\n',
        'proc/1/mountinfo': '1 1 8:0 / /srv/customer rw - ext4 /dev/sda rw\n',
    }, {'sys/class/block/sda': f'../../{disk}/block/sda'}).write(tmp_path)
    _code, report = _verify(run, tmp_path)
    assert 'the host uses it' in str(report['refused'])
    assert 'customer' not in str(report)


def test_unit_without_a_driver_is_reset(run, libvirt):
    with test_reset._kernel() as kernel:
        code, report = _verify(run, kernel.tree.sysfs, '--reset')
        assert code == 0
        found = [region['reset'] for region in report['regions']]
        assert sum('reset in ' in text for text in found) == 5
        [text] = [text for text in found if 'driver of the host' in text]
        # One of the two VFs, and both functions of a group or behind a bridge.
        assert len(kernel.resets) == 6
        assert (libvirt.opened, libvirt.closed) == (['qemu:///system'], 1)


def test_held_unit_is_not_reset(run, libvirt):
    libvirt.domains.append(test_check.Domain(test_check.hostdev(OF_VFIO)))
    with test_reset._kernel() as kernel:
        _code, report = _verify(run, kernel.tree.sysfs, '--reset')
        assert OF_VFIO not in kernel.resets
        assert 'no unit is free' in str(report['regions'])


def test_failed_reset_is_an_error(run, libvirt):
    with test_reset._kernel() as kernel:
        kernel.broken = {OF_VFIO}
        code, report = _verify(run, kernel.tree.sysfs, '--reset')
        assert code == 1
        assert f'{OF_VFIO}' not in str(report['refused'])
        assert 'reset failed: its reset failed' in str(report['regions'])


def test_narrow_link_is_an_error(run, tmp_path):
    machine = {'pci0000:80/0000:80:02.0': {'class': '0x060400\n',
                                           'max_link_width': '16\n'},
               'pci0000:80/0000:80:02.0/0000:81:00.0': {
                   'current_link_width': '4\n', 'max_link_width': '16\n',
                   'reset': '', 'reset_method': 'flr\n', 'config': ''}}
    build.sysfs(machine).write(tmp_path)
    code, out, _err = run('host', 'verify', '--sysfs-root', str(tmp_path),
                          conf=ENTRY)
    assert code == 1
    assert '! the link of 0000:81:00.0 has 4 of 16 lanes' in out


def test_refused_device_is_described(run):
    """The recording is of a virtual machine with a GPU, without IOMMU."""
    code, report = _verify(run, build.DATA / 'hosts' / 'h200-guest.json')
    assert (code, report['iommu_groups'], report['regions']) == (0, False, [])
    assert report['refused'] == [{
        'ids': '10de:2335', 'driver': 'nvidia', 'reset_methods': 'flr',
        'problems': [], 'reason': 'this host has no IOMMU groups'}]


def test_kernel_is_named_without_its_builder(monkeypatch):
    monkeypatch.setattr(platform, 'release', lambda: '6.12.4-acme-prod7')
    assert verify._kernel() == '6.12.4'
