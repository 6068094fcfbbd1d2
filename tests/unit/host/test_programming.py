# SPDX-License-Identifier: Apache-2.0
"""Programming of FPGAs through a manager or a command."""

import os
import re

import pytest

from nova_accel.host import operations

_CARD = '0000:45:00.0'


@pytest.fixture
def machine(tmp_path):
    """A directory with a sysfs, and a bitstream beside it."""
    (tmp_path / 'sys/bus').mkdir(parents=True)
    manager = tmp_path / 'sys/class/fpga_manager/fpga0'
    manager.mkdir(parents=True)
    (manager / 'firmware').write_text('')
    (tmp_path / 'file.bin').write_bytes(b'bits')
    return tmp_path


@pytest.fixture
def kernel(machine, monkeypatch):
    """Return the files that the kernel reads, one for each write."""
    read = []

    def write(path, name):
        file = machine / 'lib/firmware' / name
        read.append((path, file.read_bytes(), file.stat().st_mode & 0o777))
    monkeypatch.setattr(operations, 'write', write)
    return read


def _by_manager(machine, manager='fpga0', file='file.bin'):
    operations.Operations(str(machine / 'sys')).program_by_manager(
        manager, str(machine / file))


def _by_command(machine, *words, file='file.bin', card=_CARD, region='0'):
    return operations.Operations(str(machine / 'sys')).program_by_command(
        list(words), str(machine / file), card, region, 10)


def _command(machine, text='echo "$@"'):
    path = machine / 'command'
    path.write_text(f'#!/bin/sh\n{text}\n')
    path.chmod(0o755)
    return str(path)


def test_bitstream_exists_while_the_kernel_reads_it(machine, kernel):
    _by_manager(machine)
    assert kernel == [(str(machine / 'sys/class/fpga_manager/fpga0/firmware'),
                       b'bits', 0o600)]
    assert os.listdir(machine / 'lib/firmware') == []


def test_bitstream_is_deleted_when_the_kernel_refuses(machine, monkeypatch):
    def refuse(path, name):
        raise OSError(22, 'Invalid argument')
    monkeypatch.setattr(operations, 'write', refuse)
    with pytest.raises(OSError):
        _by_manager(machine)
    assert os.listdir(machine / 'lib/firmware') == []


@pytest.mark.parametrize('manager', ['..', 'a/b', '', 'fpga0\n', 'x' * 65])
def test_invalid_manager_name_raises(machine, kernel, manager):
    with pytest.raises(ValueError):
        _by_manager(machine, manager)
    assert kernel == []


def test_missing_firmware_attribute_is_not_created(machine):
    with pytest.raises(FileNotFoundError):
        _by_manager(machine, 'fpga1')
    assert not (machine / 'sys/class/fpga_manager/fpga1').exists()


@pytest.mark.parametrize('way', [
    _by_manager, lambda machine, file: _by_command(
        machine, _command(machine), '{bitstream}', file=file)])
def test_bitstream_that_is_not_a_regular_file_raises(machine, kernel, way):
    (machine / 'secret').write_text('secret')
    (machine / 'link').symlink_to(machine / 'secret')
    os.mkfifo(machine / 'pipe')
    for name in ('link', 'pipe', 'sys', 'nowhere'):
        with pytest.raises((OSError, ValueError)):
            way(machine, file=name)
    assert kernel == []


def test_command_is_run_without_a_shell(machine):
    code, said = _by_command(
        machine, _command(machine), '-b={bitstream}', '{address}/{region}',
        '$(id); {x}', region='3')
    assert code == 0
    assert re.fullmatch(fr'-b=/\S+/file\.bin {_CARD}/3 \$\(id\); \{{x\}}\n',
                        said.decode())


def test_a_command_gets_a_copy_that_is_gone_afterwards(machine):
    code, said = _by_command(machine, _command(
        machine, f'echo changed >{machine}/file.bin; cat $1; echo; '
        'stat -c %a $1; echo $1'), '{bitstream}')
    content, mode, path = said.decode().splitlines()
    assert (code, content, mode) == (0, 'bits', '600')
    assert not os.path.exists(os.path.dirname(path))


def test_placeholders_in_values_are_not_replaced(machine):
    (machine / '{region}').write_text('')
    assert _by_command(machine, _command(machine), '{bitstream}',
                       file='{region}')[1].endswith(b'/{region}\n')


@pytest.mark.parametrize('card, region', [
    ('45:00.0', '0'), ('0000:45:00.0; id', '0'), (_CARD, 'x'), (_CARD, '')])
def test_invalid_card_or_region_raises(machine, card, region):
    with pytest.raises(ValueError):
        _by_command(machine, _command(machine), '{bitstream}', card=card,
                    region=region)
