# SPDX-License-Identifier: Apache-2.0
"""Commands that end, hang, and print anything."""

import os
import pathlib
import sys
import time

import pytest

from nova_accel.host import commands


def _run(text, timeout=10):
    return commands.run(['/bin/sh', '-c', text], timeout)


def test_output_and_error_are_returned():
    assert _run('echo one; echo two >&2; exit 3') == (3, b'one\ntwo\n')


def test_end_of_a_long_output_is_kept():
    code, said = commands.run([
        sys.executable, '-c', 'print("x" * 5_000_000 + "end", end="")'], 30)
    assert code == 0
    assert len(said) == commands.MAX_OUTPUT
    assert said.endswith(b'xxend')


def test_binary_output_is_returned():
    assert _run(r'printf "\377\000\n"') == (0, b'\xff\x00\n')


@pytest.mark.parametrize('text', [
    'echo here; sleep 60', 'echo here; sleep 60 & sleep 60',
    'echo here; while :; do :; done', 'echo here; trap "" TERM; sleep 60',
    'echo here; exec >&- 2>&-; sleep 60'])
def test_hanging_command_is_killed(text):
    began = time.monotonic()
    assert _run(text, 2) == (None, b'here\n')
    assert time.monotonic() - began < 25


def test_children_of_a_killed_command_are_killed(tmp_path):
    note = tmp_path / 'pid'
    assert _run(f'sleep 60 & echo $! >{note}; sleep 60', 2)[0] is None
    _wait_until_gone(int(note.read_text()))


def test_remaining_child_does_not_delay_the_return(tmp_path):
    note = tmp_path / 'pid'
    began = time.monotonic()
    assert _run(f'sleep 60 & echo $! >{note}', 30) == (0, b'')
    assert time.monotonic() - began < 25
    _wait_until_gone(int(note.read_text()))


def test_missing_command_raises():
    with pytest.raises(FileNotFoundError):
        commands.run(['/nowhere/command'], 1)


def test_command_does_not_get_our_environment(monkeypatch):
    monkeypatch.setenv('OS_PASSWORD', 'secret')
    before = os.umask(0)
    try:
        code, said = _run('env; umask; pwd')
    finally:
        os.umask(before)
    assert code == 0
    assert b'secret' not in said
    assert said.endswith(b'\n0022\n/\n')


def _wait_until_gone(pid):
    for _try in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        # It may be a zombie whose exit code was not read yet.
        status = pathlib.Path(f'/proc/{pid}/stat')
        if status.exists() and ' Z ' in status.read_text():
            return
        time.sleep(0.1)
    pytest.fail(f'{pid} is still there')


@pytest.mark.parametrize('output, said', [
    (b'', ''),
    (b' \n', ''),
    (b'10 %\n20 %\ncontroller nvme0: has no namespace\n\n',
     " and said 'controller nvme0: has no namespace'"),
    (b'x' * 4096, f" and said '{'x' * 300}'"),
    (b'a\tb\x1b\xff', " and said 'a\\tb\\x1b\ufffd'"),
])
def test_message_has_the_last_line(output, said):
    assert commands.describe('/x', 3, output, 10) == (
        f"'/x' ended with 3{said}")
