# SPDX-License-Identifier: Apache-2.0
"""nova-accel-fpga, on a modelled machine with a simulated kernel.

``0000:45:00.0`` has one region with two virtual functions, ``0000:46:00.0``
two regions with one each, and ``0000:47:00.0`` an FPGA manager with the
attribute ``firmware``.
"""

import pytest

from nova_accel.cleaners import fpga
from nova_accel.host import operations
from tests.unit import build

_NONE = '0' * 32
_LOOPBACK = 'd8424dc4a4a3c413f89e433683f9040b'
_STREAM = 'f7df405cbd7acf7222f144b0b93acd18'


@pytest.fixture
def machine(tmp_path):
    build.recorded('fpga-modelled').write(tmp_path)
    (tmp_path / 'blank').write_bytes(b'blank')
    return tmp_path


@pytest.fixture
def run(machine, capsys):
    """Return a function that runs the program: exit code, output, errors."""
    def run(*words):
        return fpga.main(words, str(machine / 'sys')), *capsys.readouterr()
    return run


def _ports(machine, card):
    return sorted(machine.glob(
        f'sys/bus/pci/devices/{card}.*/fpga_region/*/dfl-port.*/afu_id'))


@pytest.mark.parametrize('region, ports', [('0', [0]), ('1', [1])])
def test_each_region_is_verified_alone(machine, run, region, ports):
    files = _ports(machine, '0000:46:00')
    for number in ports:
        files[number].write_text(f'{_NONE}\n')
    verify = 'verify', '0000:46:00.0', '--region'
    assert run(*verify, region) == (
        0, f'device 0000:46:00.0, region {region} shows no function\n', '')
    other = str(1 - int(region))
    code, _said, error = run(*verify, other)
    assert code == 1
    assert f'region {other}: shows {(_LOOPBACK, _STREAM)[int(other)]}, ' in (
        error)


def test_all_functions_of_a_region_are_verified(machine, run):
    first, second = _ports(machine, '0000:45:00')
    first.write_text(f'{_NONE}\n')
    assert run('verify', '0000:45:00.0')[0] == 1
    second.write_text(f'{_NONE}\n')
    assert run('verify', '0000:45:00.0')[0] == 0


def test_blank_bitstream_with_an_id(machine, run):
    verify = 'verify', '0000:45:00.0', '--shows'
    assert run(*verify, _LOOPBACK.upper())[0] == 0
    assert run(*verify, _STREAM)[0] == 1


@pytest.mark.parametrize('text', ['f' * 32, '', 'none'])
def test_port_that_does_not_answer(machine, run, text):
    for port in _ports(machine, '0000:45:00'):
        port.write_text(f'{text}\n')
    code, _said, error = run('verify', '0000:45:00.0')
    assert (code, 'the afu_id of dfl-port' in error) == (1, True)


@pytest.mark.parametrize('address, more, text', [
    ('0000:46:00.0', ['--region', '2'], 'shows no port'),
    ('0000:47:00.0', [], 'shows no port'),
    ('0000:99:00.0', [], 'device 0000:99:00.0: shows no FPGA'),
])
def test_nothing_to_verify(run, address, more, text):
    code, _said, error = run('verify', address, *more)
    assert (code, text in error) == (1, True)


def test_broken_manager(machine, run):
    for port in _ports(machine, '0000:45:00'):
        port.write_text(f'{_NONE}\n')
    [state] = machine.glob('sys/devices/pci0000:40/0000:40:06.0/0000:45:00.0/'
                           'fpga_region/region0/dfl-fme.0/dfl-fme-mgr.0/'
                           'fpga_manager/fpga0/state')
    state.write_text('write error\n')
    code, _said, error = run('verify', '0000:45:00.0')
    assert (code, "'write error'" in error) == (1, True)


@pytest.fixture
def programmed(machine, monkeypatch):
    """Return what the kernel gets; ``state`` is the manager's afterwards."""
    got = []

    def write(path, name):
        got.append((machine / 'lib/firmware' / name).read_bytes())
        (machine / 'sys/class/fpga_manager/fpga2/state').write_text(
            f'{write.state}\n')
    write.state = 'operating'
    monkeypatch.setattr(operations, 'write', write)
    return write, got


_CLEAN = 'clean', '0000:47:00.0', '--blank'


def test_clean(machine, run, programmed):
    assert run(*_CLEAN, str(machine / 'blank'))[0] == 0
    assert programmed[1] == [b'blank']


def test_clean_that_fails(machine, run, programmed):
    programmed[0].state = 'write error'
    code, _said, error = run(*_CLEAN, str(machine / 'blank'))
    assert (code, "is in state 'write error'" in error) == (1, True)


@pytest.mark.parametrize('words, text', [
    ((*_CLEAN, '{}/none'), 'No such file'),
    ((*_CLEAN, '{}/open'), 'users other than root can write'),
    (('clean', '0000:45:00.0', '--blank', '{}/blank'), 'has no attribute '
     '"firmware" in this kernel; let a command of the vendor clean it'),
])
def test_clean_that_does_not_begin(machine, run, programmed, words, text):
    (machine / 'open').touch()
    (machine / 'open').chmod(0o666)
    code, _said, error = run(*(word.format(machine) for word in words))
    assert (code, programmed[1]) == (1, [])
    assert text in error


@pytest.mark.parametrize('words', [
    ('clean', '0000:47:00.0'), ('verify', 'x'), ('wipe', '0000:47:00.0'),
    ('verify', '0000:47:00.0', '--shows', 'x')])
def test_wrong_words(run, words):
    with pytest.raises(SystemExit) as raised:
        run(*words)
    assert raised.value.code == 2
