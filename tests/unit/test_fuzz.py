# SPDX-License-Identifier: Apache-2.0
"""The fuzz harnesses: a short run, and faults that they have to find."""

import os
import re
import time

import pytest

from nova_accel.core import errors
from tests import fuzz
from tests.fuzz import campaign
from tests.fuzz import forms
from tests.fuzz import harness
from tests.fuzz import worker

_INPUTS = 500


@pytest.mark.parametrize('name', fuzz.WITHOUT_NOVA)
def test_code_keeps_the_bounds(name):
    result = campaign.fuzz(name, inputs=_INPUTS)
    assert [failure.why for failure in result.failures.values()] == []
    assert result.counts.inputs == _INPUTS
    # Some get past the first parser.
    assert result.counts.accepted > _INPUTS / 100
    assert result.counts.slowest <= worker.SECONDS
    assert result.counts.largest <= worker.MEMORY


class Planted(harness.Harness):
    """Code with a fault that one of its inputs finds."""

    form = forms.Json

    def seeds(self):
        return [b'["%d"]' % number for number in range(20)]

    def run(self, content):
        if content == b'["7"]':
            self.fail()
        return True


class Raises(Planted):
    def fail(self):
        {}['planted']


class Computes(Planted):
    def fail(self):
        # Python handles no signal while it compares.
        re.fullmatch('(a|a)*b', 'a' * 50)


class Waits(Planted):
    def fail(self):
        time.sleep(worker.SECONDS + 0.1)


class Grows(Planted):
    def fail(self):
        self.content = b'x' * (worker.MEMORY + (1 << 20))
        del self.content


class Reserves(Planted):
    def fail(self):
        bytes(4 * worker.MEMORY)


class Ends(Planted):
    def fail(self):
        os._exit(3)


class Garbles(Planted):
    def fail(self):
        harness.check_error(errors.AccelError('a', 'b\nc'))


@pytest.mark.parametrize('fault, why', [
    (Raises, "KeyError: 'planted'"),
    (Computes, 'took more than 2 seconds'),
    (Waits, 'more than 2 seconds: 2.1'),
    (Grows, 'more than 512 MB: 51'),
    (Reserves, 'MemoryError'), (Ends, 'process ended with 3'),
    (Garbles, 'AssertionError: the text of an error')])
def test_planted_fault_is_found(fault, why):
    result = campaign.fuzz(_place(fault), inputs=20)
    [failure] = result.failures.values()
    assert (failure.number, result.counts.inputs) == (7, 20)
    assert why in failure.why


def test_input_can_be_given_again(tmp_path, monkeypatch):
    monkeypatch.setattr(campaign, 'FOLDER', tmp_path)
    path = campaign.write(_place(Raises), 1, 7)
    assert path.read_bytes() == b'["7"]'
    [failure] = campaign.again(_place(Raises), path).failures.values()
    assert "KeyError: 'planted'" in failure.why


def _place(planted):
    return f'{__name__}:{planted.__name__}'


def test_inputs_depend_on_seed_and_number_only():
    def made(seed):
        inputs = harness.Inputs('x', Planted(), seed)
        return [inputs[number] for number in range(500)]

    assert made(1) == made(1)
    assert made(1)[20:] != made(2)[20:]
    assert len(set(made(1))) > 250


def test_documentation_states_the_bounds():
    page = ' '.join((harness.ROOT / 'doc/source/contributor/testing.rst'
                     ).read_text().split())
    assert (f'takes more than {worker.SECONDS} seconds, or more than '
            f'{worker.MEMORY >> 20} MB of memory') in page
