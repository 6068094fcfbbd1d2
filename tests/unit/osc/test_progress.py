# SPDX-License-Identifier: Apache-2.0
"""The progress that a slow command prints to stderr."""

import types

import pytest

from nova_accel.osc import progress


@pytest.mark.parametrize('seconds, count, said', [
    (0.1, 4, ''), (3, 4, '2 of 4 answers\n'), (3, None, '2 answers\n'
                                               '4 answers\n')])
def test_lines_are_some_seconds_apart(monkeypatch, capsys, seconds, count,
                                      said):
    monkeypatch.setattr(progress, 'time', types.SimpleNamespace(
        monotonic=lambda: clock[0]))
    clock = [0]
    found = []
    for item in progress.each('abcd', count, 'answer'):
        found.append(item)
        clock[0] += seconds
    assert ''.join(found) == 'abcd'
    assert capsys.readouterr() == ('', said)
