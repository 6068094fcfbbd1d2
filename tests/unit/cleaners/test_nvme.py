# SPDX-License-Identifier: Apache-2.0
"""nova-accel-nvme, with a stand-in for nvme-cli and files as namespaces."""

import itertools
import os
import pathlib
import subprocess
import sys

import pytest

from nova_accel.cleaners import controller
from nova_accel.cleaners import nvme
from nova_accel.cleaners import samples
from tests.unit.cleaners import nvme_cli

_ROOT = pathlib.Path(__file__).parents[3]


@pytest.fixture
def new(tmp_path, monkeypatch):
    """Return a function that makes a disk; nvme-cli finds only that."""
    monkeypatch.setenv('PATH', f'{tmp_path}/bin:/usr/bin:/bin')
    monkeypatch.setattr(controller, 'PATIENCE', 0.3)
    monkeypatch.setattr(controller, '_PAUSE', 0.01)
    monkeypatch.setattr(nvme, '_PAUSE', 0.01)
    (tmp_path / 'probe').touch()
    try:
        os.close(os.open(tmp_path / 'probe', os.O_DIRECT))
    except OSError:
        # tmpfs before Linux 6.6.
        monkeypatch.setattr(samples, '_FLAGS', 0)
    return lambda **state: nvme_cli.Disk(tmp_path, **state)


@pytest.fixture
def run(tmp_path, capsys):
    """Return a function that runs the program: exit code, output, errors."""
    def run(*words, address=nvme_cli.ADDRESS):
        code = nvme.main([*words[:1], address, *words[1:]], tmp_path)
        return code, *capsys.readouterr()
    return run


@pytest.fixture
def fails(run):
    """Return a function that checks that a step fails, and how."""
    def fails(step, text, *options):
        code, _out, error = run(step, *options)
        assert (code, error.count('\n')) == (1, 1)
        assert text in error
    return fails


def _content(disk, name='nvme0n1'):
    return (disk.path / 'dev' / name).read_bytes()


@pytest.mark.parametrize('state, options, calls', [
    ({'sanicap': 0b111}, [], ['sanitize --sanact=2']),
    ({'sanicap': 0b101}, [], ['sanitize --sanact=4']),
    ({'sanicap': 0b100}, [], ['sanitize --sanact=3 --owpass=1']),
    ({'sanicap': 0b111}, ['--erase=overwrite'],
     ['sanitize --sanact=3 --owpass=1']),
    ({'sanicap': 0}, [], ['format --namespace-id=1 --ses=1 --lbaf=0 --ms=0 '
                          '--pi=0 --pil=0 --timeout=86400000 --force']),
    ({'sanicap': 0, 'fna': 0b100, 'flbas': 0b0110001, 'dps': 0b1010},
     ['--erase=format-crypto'],
     ['format --namespace-id=1 --ses=2 --lbaf=17 --ms=1 --pi=2 --pil=1 '
      '--timeout=86400000 --force']),
])
def test_how_it_is_erased(new, run, state, options, calls):
    disk = new(**state)
    assert run('clean', *options)[0] == 0
    assert disk.calls() == calls
    assert not any(_content(disk))
    code, said, _error = run('verify', *options)
    assert code == 0
    assert said.endswith('dev/nvme0n1: read 1024 of 5000 blocks, no marker is '
                         'left: 1024 zeros\n')


@pytest.mark.parametrize('sanicap', [0b010, 0])
@pytest.mark.parametrize('behaviour, block', [('nothing', 0), ('first', 4)])
def test_erase_that_does_nothing(new, run, fails, sanicap, behaviour, block):
    new(sanicap=sanicap, behaviour=behaviour)
    assert run('clean')[0] == 0
    fails('verify', f'nvme0n1: block {block} of 5000 was not erased')


def test_last_block_that_is_left(new, run, fails):
    disk = new()
    assert run('clean')[0] == 0
    number = 4999
    with (disk.path / 'dev/nvme0n1').open('r+b') as file:
        file.seek(number * nvme_cli.BLOCK)
        # Only a part of it.
        file.write(b'\0' * 64 + samples._marker(number, 256) + b'\0' * 192)
    fails('verify', f'block {number} of 5000 was not erased')


def test_what_is_left_may_be_random(new, run):
    new(behaviour='random', blocks=100)
    assert run('clean')[0] == 0
    code, said, _error = run('verify')
    assert code == 0
    assert '100 of 100 blocks, no marker is left: 100 other' in said


def test_markers_name_their_blocks(new, run):
    disk = new(behaviour='nothing', blocks=3000)
    before = _content(disk)
    assert run('clean')[0] == 0
    after = _content(disk)
    blocks = [number for number in range(3000)
              if after[number * 512:][:512] != before[number * 512:][:512]]
    assert (len(blocks), blocks[0], blocks[-1]) == (1024, 0, 2999)
    assert {later - block for block, later
            in itertools.pairwise(blocks)} == {2, 3}
    for number in blocks:
        assert b'%016x' % number in after[number * 512:][:512]


def test_disk_that_does_not_keep_markers(new, fails, monkeypatch):
    """Otherwise, the verification could not fail."""
    disk = new()
    monkeypatch.setattr(samples.os, 'pwritev', lambda *_arguments: 512)
    fails('clean', 'block 0 does not keep what is written to it')
    assert disk.calls() == []


@pytest.mark.parametrize('call, step, done', [
    ('pwritev', 'clean', 'written'), ('preadv', 'clean', 'read'),
    ('preadv', 'verify', 'read')])
@pytest.mark.parametrize('answer, reason', [
    (OSError(5, 'Input/output error'), 'Input/output error'),
    (256, 'only 256 bytes')])
def test_block_that_cannot_be_used(new, fails, monkeypatch, call, step, done,
                                   answer, reason):
    def broken(*_arguments):
        if isinstance(answer, OSError):
            raise answer
        return answer
    disk = new(sstat=1, action=2)
    monkeypatch.setattr(samples.os, call, broken)
    fails(step, f'nvme0n1: block 0 cannot be {done}: {reason}')
    assert disk.calls() == []


@pytest.mark.parametrize('polls', [0, 3])
def test_sanitize_that_fails(new, run, fails, polls):
    disk = new(behaviour='fails', polls=polls)
    fails('clean', 'does not report that block-erase succeeded: status 3')
    fails('verify', 'does not report that block-erase succeeded: status 3')
    disk.change(behaviour='erases')
    fails('clean', 'its last sanitize operation failed')
    assert len(disk.calls()) == 1


def test_sanitize_that_never_ends(new, run, monkeypatch, capsys):
    """nova-compute kills it."""
    looks = []

    class Killed(BaseException):
        pass

    def sleep(_time):
        looks.append(1)
        if len(looks) == 5:
            raise Killed
    monkeypatch.setattr(nvme.time, 'sleep', sleep)
    new(behaviour='hangs')
    with pytest.raises(Killed):
        run('clean')
    # Not a line for each look.
    assert capsys.readouterr().out == 'nvme0: 50 %\n'


def test_sanitize_of_somebody_else_is_waited_for(new, run):
    disk = new(sstat=2, polls=3, action=4)
    assert run('clean')[0] == 0
    assert disk.state['action'] == 2
    assert run('verify')[0] == 0


def test_report_of_another_sanitize_is_none(new, fails):
    new(sstat=1, action=4)
    fails('verify', 'does not report that block-erase succeeded')


def test_never_sanitized(new, fails):
    new(sstat=0)
    fails('verify', 'does not report that block-erase succeeded')


def test_several_namespaces(new, run, fails):
    disk = new(sanicap=0, allocated=[1, 3])
    disk.add(3, 'nvme0n3')
    assert run('clean')[0] == 0
    assert len(disk.calls()) == 2
    assert len(run('verify')[1].splitlines()) == 2
    disk.change(behaviour='nothing')
    assert run('clean')[0] == 0
    (disk.path / 'dev/nvme0n1').write_bytes(bytes(5000 * 512))
    fails('verify', 'nvme0n3: block 0')


def test_block_device_of_a_multipath_kernel(tmp_path, new, run):
    disk = new(cmic=2)
    (disk.controller / 'nvme0n1').rename(disk.controller / 'nvme0c0n1')
    assert run('clean')[0] == 0
    assert not any(_content(disk))


def test_without_namespace_management(new, run):
    disk = new(oacs=0b10)
    disk.add(2, 'nvme0n2')
    assert run('clean', '--erase=format')[0] == 0
    # It lists only namespace 1 as active.
    assert len(disk.calls()) == 1


@pytest.mark.parametrize('state, text', [
    ({'allocated': [1, 2, 5]}, 'has namespaces that are no disk here: 2, 5'),
    ({'allocated': []}, 'has no namespace'),
    ({'cmic': 2, 'controllers': [7, 8]}, 'shares its disk with other '
     'controllers, which an erase would reach: 8'),
    ({'cmic': 2, 'controllers': []}, 'does not list them: nvme admin-passthru '
     'nvme0: NVMe status: Invalid Field'),
    ({'cmic': 2, 'controllers': [7, 8, 9], 'oacs': 0x8a,
      'secondary': {8: 0, 9: 1}}, 'would reach: 9'),
    ({'sanicap': 0, 'oacs': 0}, 'supports no sanitize and no format'),
    ({'sanicap': 0, 'unvmcap': 4096}, 'has 4096 bytes in no namespace'),
    ({'behaviour': 'refuses'}, 'nvme sanitize nvme0: NVMe status: Namespace '
     'is Write Protected'),
    ({'behaviour': 'refuses', 'sanicap': 0}, 'nvme format nvme0: NVMe status'),
])
def test_refused(new, fails, state, text):
    disk = new(**state)
    before = _content(disk)
    fails('clean', text)
    if 'refuses' not in state.values():
        assert (disk.calls(), _content(disk)) == ([], before)


@pytest.mark.parametrize('damage, text', [
    (lambda disk: (disk.function / 'physfn').symlink_to('..'),
     'belongs to a virtual function'),
    (lambda disk: (disk.controller / 'state').write_text('connecting\n'),
     'has no NVMe controller that is live; the cleaner needs "driver": '
     '"nvme"'),
    (lambda disk: (disk.path / 'sys/class/block/nvme0n1/ro').write_text('1'),
     'dev/nvme0n1: is write-protected'),
    (lambda disk: (disk.path / 'dev/nvme0n1').unlink(),
     'has namespaces that are no disk here: 1'),
    (lambda disk: (disk.path / 'dev/nvme0n1').write_bytes(b''),
     'has no blocks'),
    (lambda disk: (disk.path / 'bin/nvme').unlink(), 'install nvme-cli'),
])
@pytest.mark.parametrize('step', ['clean', 'verify'])
def test_refused_by_what_the_host_shows(new, fails, step, damage, text):
    disk = new(sstat=1, action=2)
    damage(disk)
    fails(step, text)
    assert disk.calls() == []


def test_erase_that_the_disk_lacks(new, fails):
    new()
    fails('clean', 'supports no crypto-erase; it supports block-erase, format',
          '--erase=crypto-erase')


def test_disk_in_use(new, fails, monkeypatch):
    disk = new()
    theirs = os.open

    def busy(path, flags, *more, **others):
        if str(path).endswith('nvme0n1'):
            assert flags & os.O_EXCL
            raise OSError(16, 'Device or resource busy')
        return theirs(path, flags, *more, **others)
    monkeypatch.setattr(samples.os, 'open', busy)
    fails('clean', 'dev/nvme0n1: is in use: it is mounted')
    assert disk.calls() == []


def test_namespaces_that_come_late(new, run, monkeypatch):
    disk = new()
    monkeypatch.setattr(controller.time, 'sleep', lambda _time: (
        disk.path / 'late').rename(disk.path / 'dev/nvme0n1'))
    (disk.path / 'dev/nvme0n1').rename(disk.path / 'late')
    assert run('clean')[0] == 0


def test_it_imports_no_nova_and_no_oslo():
    program = ('import sys\nfrom nova_accel.cleaners import fpga, nvme\n'
               'print([name for name in sys.modules if name.partition(".")[0] '
               'in ("nova", "stevedore") or name.startswith("oslo")])')
    assert subprocess.run([sys.executable, '-c', program], cwd=_ROOT,
                          capture_output=True, text=True,
                          check=True).stdout == '[]\n'
