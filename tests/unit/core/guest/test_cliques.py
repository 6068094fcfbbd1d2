# SPDX-License-Identifier: Apache-2.0
"""GPUs behind one switch are in one clique, and nothing else is."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core.guest import cliques
from tests.unit import build


def _gpu(bus, switch, ids='10de:2330', **facts):
    return build.function(f'0000:{bus:02x}:00.0', ids,
                          location=model.Location(switch=switch), **facts)


def _find(functions, held=None):
    """Return the cliques of the functions with these numbers."""
    found = cliques.find(tuple(
        hostdev.Hostdev(functions[number].address, f'ua-{number}')
        for number in (range(len(functions)) if held is None else held)),
        model.Host(tuple(functions)))
    return [found.get(function.address) for function in functions]


def test_gpus_behind_one_switch_are_in_one_clique():
    switches = ['a', 'b', 'a', None, 'b', 'c', 'a', None]
    assert _find([_gpu(*at) for at in enumerate(switches)]) == [
        0, 1, 0, None, 1, None, 0, None]


def test_gpu_of_another_guest_is_no_peer():
    functions = [_gpu(bus, 'a') for bus in range(3)]
    assert _find(functions, [0, 2]) == [0, None, 0]
    assert _find(functions, [1]) == [None] * 3


@pytest.mark.parametrize('ids, facts', [
    ('1002:740f', {}),
    ('10de:22a3', {'class_code': 0x068000}),
    ('10de:1aef', {'class_code': 0x040300}),
    ('10de:2330', {'physfn': '0000:41:00.0'})])
def test_other_functions_are_in_none(ids, facts):
    assert _find([_gpu(1, 'a'), _gpu(2, 'a', ids, **facts), _gpu(3, 'a')]) == [
        0, None, 0]


def test_mdev_and_missing_function_are_in_none():
    held = (hostdev.Hostdev(model.MdevAddress('uuid'), 'ua-0'),
            hostdev.Hostdev(build.address('0000:81:00.0'), 'ua-1'))
    assert cliques.find(held, model.Host()) == {}


@given(st.lists(st.sampled_from('abcdefghijklmnopqrstuvwxyz'), max_size=99))
def test_number_is_one_that_qemu_takes_and_that_of_a_switch(switches):
    found = _find([_gpu(*at) for at in enumerate(switches)])
    behind = {(number, switch) for number, switch
              in zip(found, switches, strict=True) if number is not None}
    assert {number for number, _switch in behind} == set(range(len(behind)))
    assert len(behind) == min(cliques.MOST, sum(
        switches.count(switch) > 1 for switch in set(switches)))
