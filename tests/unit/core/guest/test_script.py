# SPDX-License-Identifier: Apache-2.0
"""The script of the user guide, which reads a guest's document."""

import base64
import dataclasses
import json
import pathlib
import subprocess

import pytest

from nova_accel.core import model
from nova_accel.core.guest import device_role
from nova_accel.core.guest import guest_buses
from nova_accel.core.guest import guest_document

_SCRIPT = (pathlib.Path(__file__).parents[4]
           / 'doc' / 'source' / 'user' / 'accel-devices.sh')
_NCCL = '<system version="1">\n  <cpu numaid="0">\n  </cpu>\n</system>\n'


def _role(group, bus=None):
    role = device_role.DeviceRole('ua-x', group, 'CUSTOM_GPU', 'uuid')
    return role if bus is None else dataclasses.replace(
        role, position=guest_buses.Position(
            model.PciAddress(0, bus, 0, 0), f'00/{bus:02x}.0/00.0'))


@pytest.fixture
def run(tmp_path):
    """Return a function that runs the script in a guest with a document."""
    def run(*arguments, nccl=_NCCL):
        text = json.dumps(guest_document.build('server', [
            _role('a', 1), _role('b', 2), _role('a', 3), _role('b'),
            _role('', 4)], nccl=nccl), indent=1)
        raw = tmp_path / 'raw'
        raw.write_bytes(base64.b64encode(text.encode()))
        done = subprocess.run(
            ['sh', str(_SCRIPT), *arguments], capture_output=True, text=True,
            env={'PATH': '/usr/sbin:/usr/bin:/sbin:/bin',
                 'ACCEL_DOCUMENT': str(raw),
                 'ACCEL_NCCL': str(tmp_path / 'run' / 'nccl.xml')})
        assert not done.stderr
        return done.stdout.split()
    return run


@pytest.mark.parametrize('group, buses', [
    ('a', [1, 3]), ('b', [2]), ('', [1, 2, 3, 4])])
def test_script_finds_the_devices_of_a_group(run, group, buses):
    assert sorted(run(group)) == [f'0000:{bus:02x}:00.0' for bus in buses]


def test_script_installs_the_nccl_file(run, tmp_path):
    run('--nccl')
    assert (tmp_path / 'run' / 'nccl.xml').read_text().rstrip('\n') == (
        _NCCL.rstrip('\n'))


def test_script_leaves_no_file_if_there_is_none(run, tmp_path):
    run('--nccl', nccl='')
    assert not list((tmp_path / 'run').iterdir())


@pytest.mark.parametrize('arguments, length, said', [
    (['c'], None, 'no device is in a group c'),
    (['--ncc'], None, 'no device is in a group --ncc'),
    ([], 700, 'is incomplete'), (['--nccl'], 700, 'is incomplete'),
    (['--nccl'], 0, 'is incomplete')])
def test_script_says_what_is_wrong(tmp_path, arguments, length, said):
    """It keeps the file of NCCL."""
    raw, nccl = tmp_path / 'raw', tmp_path / 'nccl.xml'
    nccl.write_text('old')
    text = json.dumps(guest_document.build(
        'server', [_role('a', 1), _role('a', 2)], nccl=_NCCL), indent=1)
    raw.write_bytes(base64.b64encode(text.encode())[:length])
    done = subprocess.run(
        ['sh', str(_SCRIPT), *arguments], capture_output=True, text=True,
        env={'PATH': '/usr/sbin:/usr/bin:/sbin:/bin',
             'ACCEL_DOCUMENT': str(raw), 'ACCEL_NCCL': str(nccl)})
    assert (done.returncode, done.stdout) == (1, '')
    assert said in done.stderr
    assert nccl.read_text() == 'old'


def test_script_says_that_there_is_no_document(tmp_path):
    done = subprocess.run(
        ['sh', str(_SCRIPT)], capture_output=True, text=True,
        env={'PATH': '/usr/bin:/bin', 'ACCEL_DOCUMENT': str(tmp_path / 'x')})
    assert done.returncode == 1
    assert 'this server has no document of devices' in done.stderr
