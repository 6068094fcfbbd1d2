# SPDX-License-Identifier: Apache-2.0
"""The framework of the benchmarks, without their measurements."""

import collections
import contextlib
import multiprocessing.connection
import os
import signal
import subprocess
import time
import unittest

from hypothesis import given
from hypothesis import strategies as st
import pytest

from tests.bench import __main__
from tests.bench import commit
from tests.bench import frame
from tests.bench import report
from tests.bench import rules
from tests.bench import scheduling
from tests.bench import summary
from tests.bench import worker

#: Limit in seconds that no test should reach.
LONG = 60


class Served(unittest.TestCase):
    """Answers questions in the worker's process."""

    def __init__(self, connection):
        super().__init__('serve')
        self._connection = connection

    def serve(self):
        worker.answer(self._connection, self.answer)

    def answer(self, what):
        if what == 'sleep':
            time.sleep(LONG)
        if what == 'die':
            os.kill(os.getpid(), signal.SIGKILL)
        if what == 'too much':
            return bytearray(worker.MEMORY)
        return f'{what}!'


def _broken(connection):
    raise ValueError('on purpose')


@pytest.fixture
def served():
    asked = worker.Worker(Served, limit=LONG)
    yield asked
    asked.close()


def test_worker_answers(served):
    assert [served.ask({'what': text}, LONG) for text in ('one', 'two')] == [
        'one!', 'two!']


def test_worker_waits_with_non_blocking_sockets(monkeypatch):
    pipe = multiprocessing.connection.Pipe

    def impatient(duplex):
        ends = pipe(duplex)
        for end in ends:
            os.set_blocking(end.fileno(), False)
        return ends

    monkeypatch.setattr('multiprocessing.connection.Pipe', impatient)
    asked = worker.Worker(Served, limit=LONG)
    with contextlib.closing(asked):
        time.sleep(0.5)
        assert asked.ask({'what': 'one'}, LONG) == 'one!'


@pytest.mark.parametrize('what, reason', [
    ('die', worker.DIED), ('too much', worker.OUT_OF_MEMORY)])
def test_worker_reports_why_it_failed(served, what, reason):
    with pytest.raises(worker.Unanswered, match=reason):
        served.ask({'what': what}, LONG)


def test_worker_is_killed_after_its_limit(served):
    with pytest.raises(worker.Unanswered, match=worker.TIMED_OUT):
        served.ask({'what': 'sleep'}, 0.1)
    assert not served._process.is_alive()


def test_worker_that_fails_to_start_is_reported():
    with pytest.raises(worker.Unanswered, match=worker.DIED):
        worker.Worker(_broken, limit=LONG)


@pytest.mark.parametrize('value, text', [
    (0.0634, '0.063'), (1.44, '1.4'), (9.96, '10'), (352.1, '350'),
    (12345, '12,000'), (0, '0')])
def test_numbers_are_rounded_to_two_digits(value, text):
    assert report.significant(value) == text


def test_report_is_written_as_rst():
    text = report.rst('some', report.Report(
        'Title', ('Words.',),
        (report.Table('Cells', ('A', 'B'), (('1', ''),)),),
        (report.Plot('many', 'Lines', 'x', 'y', {}),)), 'Measured.')
    assert text == '''\
.. Written by "python -m tests.bench some", not by hand.

Title
-----

Words.

Measured.

.. image:: /reference/benchmarks/some-many.svg
   :alt: Lines

.. The tables.

.. list-table:: Cells
   :header-rows: 1

   * - A
     - B

   * - 1
     -
'''


def _figures(*cells):
    keys = ('side', 'hosts', 'count', 'seconds')
    return {'limit': 60, 'cells': [
        {**dict(zip(keys, cell, strict=True)), 'one_node': False,
         'candidates': 1, 'placement_seconds': 0.1, 'outcome': 'right'}
        if isinstance(cell[-1], float) else
        {**dict(zip(keys[:-1], cell, strict=False)), 'one_node': False,
         'failed': cell[-1]} for cell in cells]}


def test_ratios_are_bounds_where_a_side_did_not_finish():
    made = scheduling.report(_figures(
        ('ours', 1, 1, 0.1), ('ours', 9, 1, 0.5),
        ('ours', 1, 8, 0.1), ('ours', 9, 8, 0.6),
        ('tuned', 1, 1, 0.1), ('tuned', 9, 1, 0.5),
        ('tuned', 1, 8, 3.0), ('tuned', 9, 8, worker.TIMED_OUT),
        ('defaults', 1, 1, 0.1), ('defaults', 9, 1, 0.5),
        ('defaults', 1, 8, worker.TIMED_OUT),
        ('defaults', 9, 8, scheduling.NOT_TRIED)))
    _what, defaults, tuned, ours = made.says
    assert 'did not finish within 60 s' in defaults
    assert 'at least 600 times' in defaults
    assert '30 on 1 host. With more than 1 host, it did not' in tuned
    assert 'takes **1.2 times** as long for 8 devices as for one' in ours
    rows = {row[:2]: row for row in made.tables[0].rows}
    assert rows['1', '8'] == (
        '1', '8', '0.1', '3', '30', 'did not finish', '')
    assert rows['9', '8'] == ('9', '8', '0.6', 'did not finish', '', '', '')
    hosts, _devices = made.plots
    assert hosts.ratios == {"Nova's way, tuned": [(1, 30.0)]}


def test_report_says_what_devices_add():
    made = scheduling.report(_figures(
        ('ours', 1, 0, 1.0), ('ours', 1, 1, 1.2), ('ours', 1, 8, 1.5),
        ('tuned', 1, 0, 1.25), ('tuned', 1, 1, 2.0), ('tuned', 1, 8, 6.25),
        ('defaults', 1, 0, 1.0), ('defaults', 1, 1, 1.2),
        ('defaults', 1, 8, worker.TIMED_OUT)))
    assert made.says[-1] == (
        'On 1 host, a request without devices takes 1 s with nova_accel. A '
        'request for 8 of 8 devices takes 0.5 s more with nova_accel, and 5 s '
        "more with *Nova's way, tuned*: 10 times as much.")


def test_larger_requests_are_skipped_after_a_timeout(monkeypatch):
    asked = []

    class Lazy:
        def __init__(self, start, make, side, hosts):
            self._key = side, hosts

        def ask(self, question, limit):
            count, one_node = question['count'], question['one_node']
            asked.append((*self._key, count, one_node))
            if self._key[0] != 'ours' and count >= 2 and not one_node:
                return {'failed': worker.TIMED_OUT}
            return {'seconds': 1.0, 'candidates': 1, 'outcome': 'right',
                    'placement_seconds': 0.1}

        def close(self):
            pass

    monkeypatch.setattr(worker, 'Lazy', Lazy)
    monkeypatch.setattr(scheduling, '_SCALES', {
        frame.QUICK: ((1, 9), (1, 2, 4), 60)})
    figures = scheduling.measure(frame.QUICK, lambda text: None)
    tried = {key[1:] for key in asked if key[0] == 'tuned'}
    assert tried == {(hosts, *request) for hosts in (1, 9) for request in (
        (1, False), (2, True), (4, True))} | {(1, 2, False)}
    assert len(figures['cells']) == 3 * 2 * 5
    assert len([key for key in asked if key[0] == 'ours']) == 10


@pytest.mark.parametrize('name', (*__main__.NAMES, *__main__.OTHERS))
def test_documentation_matches_the_measurements(name):
    result = frame.read(name)
    written = (frame.DIRECTORY / f'{name}.inc').read_text()
    assert written == frame.section(result)
    for plot in frame.reported(result).plots:
        assert (frame.DIRECTORY / report.plot_file(name, plot)).exists()


def test_summary_in_the_documentation_is_current():
    assert (frame.DIRECTORY / summary.FILE).read_text() == summary.section()


def _by_brute_force(sizes, hosts):
    """Whether servers fit, the largest first; each host has two nodes."""
    if not sizes:
        return True
    size, *others = sizes
    for number, nodes in enumerate(hosts):
        for left in {(nodes[0] - part, nodes[1] - size + part)
                     for part in range(size + 1)
                     if size > rules.OF_A_NODE or part in (0, size)}:
            if min(left) >= 0 and _by_brute_force(others, sorted(
                    [*hosts[:number], left, *hosts[number + 1:]])):
                return True
    return False


@given(st.lists(st.integers(1, 8), max_size=8))
def test_packs_like_brute_force(sizes):
    assert rules.packs(collections.Counter(sizes), 2) == _by_brute_force(
        sorted(sizes, reverse=True), [(4, 4)] * 2)


def test_the_commit_of_the_product(tmp_path, monkeypatch):
    monkeypatch.setattr(commit, '_ROOT', tmp_path)
    product = tmp_path / 'nova_accel' / 'module.py'
    product.parent.mkdir()

    def git(*words):
        return subprocess.run(
            ('git', '-C', tmp_path, '-c', 'user.name=a', '-c', 'user.email=a',
             *words), check=True, capture_output=True, text=True).stdout

    def write(path):
        path.write_text('text')
        git('add', '--all')
        git('commit', '--message', 'text')

    git('init')
    write(product)
    written = git('rev-parse', '--short=9', 'HEAD').strip()
    write(tmp_path / 'README')
    assert commit.commit() == written
    product.write_text('other text')
    assert commit.commit() == f'{written}+'
