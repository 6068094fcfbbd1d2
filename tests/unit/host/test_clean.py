# SPDX-License-Identifier: Apache-2.0
"""A cleaner's commands, on a device of a copy of sysfs."""

import fcntl
import json
import os
import stat
import time

import pytest

from nova_accel.core import errors
from nova_accel.host import commands
from nova_accel.host import operations

_CARD = '0000:81:00.0'


class _Host:
    """A sysfs with a function, and the kernel's binding of drivers."""

    def __init__(self, path, monkeypatch, driver, override='(null)'):
        self.path = path
        self.device = path / 'sys/bus/pci/devices' / _CARD
        self.device.mkdir(parents=True)
        (self.device / 'vendor').write_text('0x144d\n')
        self._override = self.device / 'driver_override'
        self._override.write_text(override + '\n')
        (path / 'sys/bus/pci/drivers_probe').touch()
        self.natural = 'nvme'
        self._bind(driver)
        self.seen = []
        monkeypatch.setattr(operations, 'write', self._write)

    @property
    def driver(self):
        link = self.device / 'driver'
        return os.path.basename(os.readlink(link)) if link.is_symlink() else ''

    def _bind(self, name):
        if name:
            folder = self.path / 'sys/bus/pci/drivers' / name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / 'unbind').touch()
            (self.device / 'driver').symlink_to(folder)

    def _write(self, path, text, _check=None):
        name = os.path.basename(path)
        if name == 'unbind':
            (self.device / 'driver').unlink()
        elif name == 'drivers_probe':
            if not self.driver:
                wanted = self._override.read_text().strip()
                self._bind(self.natural if wanted == '(null)' else wanted)
        elif name == 'driver_override':
            self._override.write_text((text.strip() or '(null)') + '\n')

    def script(self, name, text):
        path = self.path / name
        path.write_text(f'#!/bin/sh\n{text}\n')
        path.chmod(stat.S_IRWXU)
        return str(path)

    def clean(self, clean='exit 0', verify='exit 0', **more):
        return operations.Operations(str(self.path / 'sys')).clean(json.dumps({
            'name': 'wipe',
            'clean': [self.script('clean', clean), '{address}', '{region}'],
            'verify': [self.script('verify', verify), '{address}'],
            **more}), _CARD, '1')

    def link(self):
        return f'readlink {self.device}/driver'


@pytest.fixture
def host(tmp_path, monkeypatch):
    return _Host(tmp_path, monkeypatch, 'vfio-pci')


def test_both_commands_end_well(host):
    done = host.path / 'done'
    assert host.clean(f'echo $* >> {done}', f'echo $* >> {done}') == (
        '', 0, b'')
    assert done.read_text().split('\n') == [f'{_CARD} 1', _CARD, '']


@pytest.mark.parametrize('clean, verify, outcome', [
    ('echo no; exit 3', 'exit 0', ('clean', 3, b'no\n')),
    ('exit 0', 'echo no; exit 4', ('verify', 4, b'no\n')),
    ('sleep 60', 'exit 0', ('clean', None, b'')),
    ('exit 0', 'sleep 60', ('verify', None, b'')),
    ('kill -9 $$', 'exit 0', ('clean', -9, b''))])
def test_command_fails(host, clean, verify, outcome):
    assert host.clean(clean, verify, timeout=1) == outcome


def test_processes_of_its_group_end_with_a_command(host):
    assert host.clean('sleep 60 &') == ('', 0, b'')


def test_verification_does_not_run_after_a_failure(host):
    host.clean('exit 1', f'touch {host.path}/verified')
    assert not (host.path / 'verified').exists()


@pytest.mark.parametrize('before, override, after', [
    ('vfio-pci', 'vfio-pci', 'vfio-pci'), ('', '(null)', ''),
    ('nvme', '(null)', 'nvme'),
    # A killed helper of ours left it.
    ('nvme', 'nvme', 'nvme')])
def test_driver_meanwhile(tmp_path, monkeypatch, before, override, after):
    host = _Host(tmp_path, monkeypatch, before, override)
    step, code, said = host.clean(f'{host.link()}; exit 1', driver='nvme')
    assert (step, code) == ('clean', 1)
    assert said.decode().strip().endswith('/nvme')
    assert host.driver == after
    assert (host.device / 'driver_override').read_text().strip() == (
        '(null)' if override == 'nvme' else override)


def test_driver_that_does_not_take_the_device(tmp_path, monkeypatch):
    host = _Host(tmp_path, monkeypatch, 'vfio-pci', 'vfio-pci')
    monkeypatch.setattr(host, '_bind', lambda name: None)
    with pytest.raises(OSError, match='nvme does not take'):
        host.clean(driver='nvme')


def test_another_cleaner_is_at_work(host):
    with open(host.device / 'vendor') as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            host.clean()
    assert host.clean()[0] == ''


def test_process_that_is_left_keeps_the_device(host, monkeypatch):
    """It has another process group, as one that ignores signals."""
    monkeypatch.setattr(commands, '_GRACE', 0.1)
    monkeypatch.setattr(operations, '_LEFT', 0.1)
    stop = host.path / 'stop'
    begun = host.path / 'begun'
    for commands_of in (
            f'setsid sh -c "touch {begun}; while [ ! -e {stop} ]; do '
            'sleep 0.02; done" > /dev/null 2>&1 &\n'
            f'while [ ! -e {begun} ]; do sleep 0.02; done', 'exit 0'):
        with pytest.raises(BlockingIOError):
            host.clean(commands_of)
    stop.touch()
    while True:
        try:
            assert host.clean()[0] == ''
            break
        except BlockingIOError:
            time.sleep(0.02)


@pytest.mark.parametrize('definition, address, region, error', [
    ('{}', _CARD, '0', errors.EntryError),
    (None, '../x', '0', ValueError), (None, _CARD, 'x', ValueError)])
def test_invalid_argument(host, definition, address, region, error):
    good = json.dumps({'name': 'x', 'clean': ['/bin/true'],
                       'verify': ['/bin/true']})
    with pytest.raises(error):
        operations.Operations(str(host.path / 'sys')).clean(
            definition or good, address, region)
