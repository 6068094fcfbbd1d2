# SPDX-License-Identifier: Apache-2.0
"""The number of VFs of a card, and what is offered of it."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_accel.core import model
from nova_accel.core.device_spec import spec_entry
from nova_accel.core.device_spec import virtual_functions
from tests.unit import build

_AT = '0000:85:00.0'


def _entry(number, **more):
    return {'product_id': '37c8', 'num_vfs': number, **more}


def _plan(functions, *specs, foreign=(), held=()):
    changes, problems = virtual_functions.plan(functions,
                                               build.entries(*specs), foreign,
                                               {build.address(at)
                                                for at in held})
    return ([(str(change.card), change.before, change.number)
             for change in changes], [str(problem) for problem in problems])


@pytest.mark.parametrize('before, number, after', [
    (0, 4, 4), (2, 4, 4), (4, 2, 2), (0, '4', 4), (2, 'all', 16), (0, 16, 16)])
def test_number_of_vfs_is_changed_to_that_of_the_entry(before, number, after):
    assert _plan(build.card(_AT, before), _entry(number)) == (
        [(_AT, before, after)], [])


def test_no_change_if_the_number_is_right_or_no_entry_sets_it():
    assert _plan(build.card(_AT, 4), _entry(4)) == ([], [])
    assert _plan(build.card(_AT, 4), {'product_id': '37c8'}) == ([], [])
    assert _plan(build.card(_AT, 4), {'vendor_id': '10de', 'num_vfs': 1}
                 ) == ([], [])


def test_the_first_matching_entry_is_used():
    assert _plan(build.card(_AT, 0), _entry(2), _entry(3))[0] == [(_AT, 0, 2)]
    assert _plan(build.card(_AT, 0), {'product_id': '37c8'}, _entry(3)
                 ) == ([], [])


def test_any_entry_of_several_mdev_types_can_set_the_number():
    plan = _plan(build.card(_AT, 0), {'mdev_type': 'a', 'product_id': '37c8'},
                 _entry(3, mdev_type='b'))
    assert plan == ([(_AT, 0, 3)], [])


def _with(function, **facts):
    return build.function(str(function.address), function.ids,
                          physfn=function.physfn, **facts)


@pytest.mark.parametrize('facts, reason', [
    ({'use': 'disk nvme0n1 is mounted'},
     'the host uses 0000:85:00.2: disk nvme0n1 is mounted'),
    ({'mdev_types': (model.MdevType('a', 0, ('uuid',)),)},
     '0000:85:00.2 has mediated devices'),
    ({'open': True}, 'a program has 0000:85:00.2 open'),
])
def test_no_change_while_a_vf_is_used(facts, reason):
    card, *vfs = build.card(_AT, 3)
    vfs[1] = _with(vfs[1], **facts)
    changes, [problem] = _plan([card, *vfs], _entry(4))
    assert changes == []
    assert problem.startswith(
        f'device {_AT} (8086:37c8): it keeps 3 virtual functions, though '
        f'[nova_accel] device_spec #1 says num_vfs 4: {reason}; ')


@pytest.mark.parametrize('held', [_AT, '0000:85:00.1', '0000:85:00.3'])
def test_no_change_while_a_domain_holds_a_function(held):
    changes, [problem] = _plan(build.card(_AT, 3), _entry(4), held=[held])
    assert changes == []
    assert f'a domain holds {held}; move or delete' in problem


@pytest.mark.parametrize('held, number', [
    ((), 2), (('0000:85:00.1',), 2), (('0000:85:00.3', '0000:85:00.2'), 3),
    (('0000:85:01.2',), 10), (('0000:85:03.0',), 2)])
def test_after_a_reboot_held_vfs_are_created_again(held, number):
    [card] = build.card(_AT, 0)
    card = dataclasses.replace(card, vf_offset=1, vf_stride=1)
    changes, problems = _plan([card], _entry(2), held=held)
    assert changes == [(_AT, 0, number)]
    assert [f'it gets {number} virtual functions, though' in problem
            for problem in problems] == [True] * (number > 2)


def test_held_card_gets_no_vfs():
    [card] = build.card(_AT, 0)
    card = dataclasses.replace(card, vf_offset=1, vf_stride=1)
    changes, problems = _plan([card], _entry(2), held=['0000:85:03.0', _AT])
    assert (changes, len(problems)) == ([], 1)


@pytest.mark.parametrize('held, refused', [
    ((), False), (('0000:85:00.2',), True), (('0000:85:01.2', _AT), True),
    ((_AT,), False), (('0000:85:03.0',), False)])
def test_card_is_refused_as_a_whole_while_its_vfs_are_held(held,
                                                           refused):
    """A reboot of the host removed them, and no entry creates them."""
    [card] = build.card(_AT, 0)
    card = dataclasses.replace(card, vf_offset=1, vf_stride=1)
    host = build.offer([card], build.entries({'product_id': '37c8'}),
                       held=build.holding(*held))
    assert bool(host.devices) != refused
    assert build.refusals(host) == ({
        _AT: f'a server holds {held[0]} of it, which is not there'}
        if refused else {})


@pytest.mark.parametrize('claim', [
    {'product_id': '37c8'}, {'product_id': '37c9'},
    {'address': '0000:85:00.2'}])
def test_no_change_if_another_program_claims_a_function(claim):
    changes, [problem] = _plan(
        build.card(_AT, 3), _entry(4),
        foreign=build.entries(claim, option='[pci] device_spec'))
    assert changes == []
    assert '[pci] device_spec #1 claims 0000:85:00.' in problem


def test_no_change_if_a_pci_entry_names_the_port_of_the_card():
    card = _with(build.card(_AT, 0)[0], total_vfs=16, netdevs=('eth0',))
    claims = spec_entry.parse_foreign(['{"devname": "eth0"}'],
                                      '[pci] device_spec')
    changes, [problem] = _plan([card], _entry(4), foreign=claims)
    assert changes == []
    assert f'[pci] device_spec #1 claims {_AT}' in problem


def test_no_change_while_a_vf_cannot_be_read():
    changes, [problem] = _plan(build.card(_AT, 3)[:-1], _entry(4))
    assert changes == []
    assert 'only 2 of them can be read' in problem


def test_number_is_changed_while_the_host_uses_the_card():
    card, *vfs = build.card(_AT, 0)
    card = _with(card, use='network port eth0 has an address', total_vfs=16)
    assert _plan([card, *vfs], _entry(4))[0] == [(_AT, 0, 4)]


def test_more_vfs_than_the_card_can_have_are_refused():
    changes, [problem] = _plan(build.card(_AT, 2), _entry(17))
    assert changes == []
    assert 'says num_vfs 17: it can have 16; write a number up to 16' in (
        problem)


def test_problem_with_one_card_does_not_affect_others():
    cards = [*build.card('0000:84:00.0', 2), *build.card(_AT, 2)]
    changes, problems = _plan(cards, _entry(4), held=['0000:84:00.1'])
    assert (changes, len(problems)) == ([(_AT, 2, 4)], 1)


@given(st.integers(0, 5), st.integers(1, 20) | st.just('all'),
       st.sets(st.integers(0, 5)), st.sets(st.integers(0, 5)))
def test_held_and_claimed_functions_are_never_removed(
        before, number, held, claimed):
    functions = build.card(_AT, before)
    foreign = build.entries(*({'address': f'0000:85:00.{at}'}
                              for at in sorted(claimed)))
    changes, problems = _plan(functions, _entry(number), foreign=foreign,
                              held=[f'0000:85:00.{at}' for at in held])
    for _card, was, becomes in changes:
        assert was == before != becomes <= 16
        assert not (held | claimed) & set(range(before + 1))
    assert len(changes) + len(problems) == (
        before != (16 if number == 'all' else number))


# What is offered of a card with num_vfs.

def test_vfs_of_the_card_are_offered():
    host = build.host(build.card(_AT, 2), _entry(2, resource_class='QAT'))
    [device] = host.devices
    assert str(device.address) == _AT
    assert build.units(host) == {
        'CUSTOM_QAT': ['0000:85:00.1', '0000:85:00.2']}
    assert (host.refusals, host.problems) == ((), ())


@pytest.mark.parametrize('address', [
    '0000:85:*.*', '0000:85:00.*', '*:*:*.0', {'bus': '8[0-9]'}, _AT])
def test_vfs_are_offered_for_any_form_of_the_address(address):
    host = build.host(build.card(_AT, 2), _entry(2, address=address))
    assert sum(map(len, build.units(host).values())) == 2


def test_card_without_vfs_is_not_offered_as_a_whole():
    host = build.host(build.card(_AT, 0), _entry(2))
    assert host.devices == ()
    assert 'it has no virtual functions' in build.refusals(host)[_AT]
    assert 'restart nova-compute' in host.refusals[0].remedy


def test_a_number_that_no_card_can_have_is_refused():
    host = build.host(build.card(_AT, 0), _entry(17))
    assert 'it can have 16' in build.refusals(host)[_AT]


def test_device_that_can_have_no_vfs_is_refused():
    host = build.host([build.function('0000:81:00.0')],
                      {'vendor_id': '10de', 'num_vfs': 2})
    assert 'it can have no virtual functions' in build.refusals(host)[
        '0000:81:00.0']


def test_entry_with_num_vfs_that_names_only_vfs_is_refused():
    host = build.host(build.card(_AT, 2), {'product_id': '37c9',
                                           'num_vfs': 2})
    assert host.devices == ()
    assert set(build.refusals(host)) == {'0000:85:00.1', '0000:85:00.2'}
    assert 'not their card 0000:85:00.0 (8086:37c8)' in host.refusals[
        0].reason


def test_existing_vfs_are_offered_and_a_wrong_number_is_reported():
    host = build.host(build.card(_AT, 3), _entry(8))
    assert sum(map(len, build.units(host).values())) == 3
    [problem] = host.problems
    assert f'{_AT} (8086:37c8): has 3 virtual functions, and ' in problem
    assert 'says num_vfs 8' in problem


def test_mdevs_of_the_vfs_are_offered():
    card, *vfs = build.card(_AT, 2)
    vfs = [_with(vf, mdev_types=(model.MdevType('a', 1),)) for vf in vfs]
    host = build.host([card, *vfs], _entry(2, mdev_type='a'))
    [device] = host.devices
    assert (device.address, device.regions[0].total) == (card.address, 2)


def test_two_numbers_for_a_card_are_reported():
    host = build.host(build.card(_AT, 2), _entry(2), _entry(3))
    assert any('device_spec #2; the first is used' in problem
               for problem in host.problems)
