# SPDX-License-Identifier: Apache-2.0
"""Partitions as sets of cards: modules, files and managers that disagree."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_accel.core import model
from nova_accel.core.fabric import located
from nova_accel.core.fabric import manager
from nova_accel.core.fabric import module_map
from tests.unit import build

_CARDS = {1: '86', 2: 'b8', 3: '87', 4: 'bb'}


def _cards(*modules):
    return frozenset(f'0000:{_CARDS[module]}:00.0' for module in modules)


def _address(bus):
    return build.address(f'0000:{bus}:00.0')


_MODULES = {module: _address(bus) for module, bus in _CARDS.items()}


def _partition(number, *modules, **fields):
    return manager.Partition(number, tuple(
        manager.Member(module, **fields) for module in modules))


_ALL = _partition(0, 1, 2, 3, 4)
_PAIR = _partition(3, 3, 1)


def _locate(partitions=(_ALL, _PAIR), configured=_MODULES, known=(),
            ids='10de:2330', **more):
    functions = [build.function(f'0000:{bus}:00.0', ids)
                 for bus in _CARDS.values()]
    return located.locate(partitions, configured, dict(known), functions,
                          **more)


def test_partitions_are_located():
    found = _locate(known={1: _MODULES[1]})
    assert found.cards == {0: _cards(1, 2, 3, 4), 3: _cards(1, 3)}
    assert found.problems == ()
    assert found.find(map(_address, ('87', '86'))) is _PAIR
    assert found.find(map(_address, ('87', 'b8'))) is None


def test_cards_that_only_the_driver_knows():
    assert _locate(configured={}, known=_MODULES).cards == _locate().cards


@pytest.mark.parametrize('configured, known, partition, says', [
    ({1: _MODULES[1]}, {}, _PAIR, 'no card is known for module 3'),
    ({**_MODULES, 3: _address('99')}, {}, _PAIR,
     'module 3 is 0000:99:00.0, which does not exist on this host'),
    (_MODULES, {3: _address('99')}, _PAIR,
     'module 3 is 0000:87:00.0 as configured, but 0000:99:00.0 as the driver '
     'of the host said'),
    ({1: _MODULES[1]}, {3: _MODULES[1]}, _PAIR,
     '0000:86:00.0 is module 1 as configured, but module 3 as the driver of '
     'the host said'),
    (_MODULES, {}, _partition(3, 1, address=_address('bb')),
     'module 1 is 0000:86:00.0 as configured or as the driver of the host '
     'said, but 0000:bb:00.0 as the manager says')])
def test_partition_that_cannot_be_located(configured, known, partition, says):
    found = _locate([partition, _partition(9, 2)], {
        2: _MODULES[2], **configured}, known)
    assert found.cards == {9: _cards(2)}
    [problem] = found.problems
    assert says in problem
    assert problem.startswith('[nova_accel] fabric_manager: ')
    assert 'partitions with it are not offered' in problem


@pytest.mark.parametrize('ids, refused', [
    ('10de:20b2', True), ('10de:1db1', True), ('10de:20f3', True),
    ('10de:2330', False), ('10de:2335', False), ('10de:2901', False)])
def test_gpus_before_h100_are_refused(ids, refused):
    found = _locate(ids=ids)
    assert bool(found.cards) is not refused
    said = ' '.join(found.problems)
    assert ('A100 and older GPUs cannot be activated' in said) is refused
    assert ('0000:86:00.0, 0000:87:00.0' in said) is refused
    # They can still be listed by hand.
    file = model.Links((_cards(1, 2),))
    assert found.merge(file)[0].partitions == (
        file.partitions if refused else (_cards(1, 2, 3, 4), _cards(1, 3)))


def test_manager_replaces_what_the_file_says_of_its_cards():
    other = frozenset({'0000:01:00.0', '0000:02:00.0'})
    links, problems = _locate().merge(model.Links(
        (_cards(1, 3), other), (other,)))
    assert links == model.Links((_cards(1, 2, 3, 4), _cards(1, 3), other),
                                (other,))
    assert problems == []


_FEW = manager.Partition(3, (manager.Member(3, links=17, max_links=18),
                             manager.Member(1, links=18, max_links=18)))


@pytest.mark.parametrize('partitions, failed, faulty', [
    ([_ALL, _FEW], (), {3: _cards(3)}),
    ([_ALL, _PAIR], [_address('b8')], {0: _cards(2)}),
    ([_ALL, _partition(7, 1, links=0, max_links=18)], [None], {})])
def test_failed_links_withhold_the_partitions_that_need_them(
        partitions, failed, faulty):
    found = _locate(partitions, failed=[
        manager.FailedLinks(address, '', (4,)) for address in failed])
    assert found.faulty == faulty
    assert found.cards.keys() == {one.id for one in partitions}
    links, _problems = found.merge(model.Links())
    assert links.partitions == tuple(
        cards for number, cards in found.cards.items() if number not in faulty)
    assert links.faulty == frozenset().union(*faulty.values())
    assert len(found.problems) == len(faulty)


@pytest.mark.parametrize('partitions, configured, is_complete, unlisted', [
    ([_ALL], _MODULES, True, ()), ([_PAIR], _MODULES, True, (2, 4)),
    ([_PAIR], {1: _MODULES[1]}, False, ()), ([], _MODULES, False, ()),
    # What else is wrong with a partition does not matter.
    ([_FEW], _MODULES, True, (2, 4))])
def test_cards_that_may_be_used(partitions, configured, is_complete,
                                unlisted):
    found = _locate(partitions, configured)
    assert found.is_complete is is_complete
    assert found.unlisted == _cards(*unlisted)


@pytest.mark.parametrize('file, word', [
    (model.Links((_cards(1, 2),)), 'partition'),
    (model.Links((), (_cards(1, 2),)), 'island')])
def test_file_that_contradicts_the_manager(file, word):
    links, [problem] = _locate().merge(file)
    assert links == model.Links((_cards(1, 2, 3, 4), _cards(1, 3)))
    assert problem == (
        f'[nova_accel] link_domains: the {word} 0000:86:00.0 0000:b8:00.0 is '
        'not used: the fabric manager has partition 0 of 0000:86:00.0 '
        '0000:87:00.0 0000:b8:00.0 0000:bb:00.0, partition 3 of 0000:86:00.0 '
        '0000:87:00.0; remove it from the file, or correct "modules" in '
        '[nova_accel] fabric_manager')


_SETS = st.lists(st.frozensets(st.sampled_from(
    [f'0000:{bus:02x}:00.0' for bus in range(6)]), min_size=1), max_size=4)


@given(_SETS, _SETS, _SETS)
def test_no_set_of_the_file_has_a_card_of_the_manager(own, parts, islands):
    found = located.Located(cards=dict(enumerate(own)))
    links, problems = found.merge(model.Links(tuple(parts), tuple(islands)))
    ours = frozenset().union(*own)
    assert set(links.partitions) == set(own) | {
        one for one in parts if not one & ours}
    assert set(links.islands) == {one for one in islands if not one & ours}
    assert len(problems) == sum(
        bool(one & ours) for one in islands) + sum(
        bool(one & ours) and one not in own for one in parts)


def test_virtual_functions_are_in_the_order_of_the_members():
    given_ = {module: build.address(f'0000:{_CARDS[module]}:00.4')
              for module in (1, 3)}
    assert manager.in_order(_PAIR, given_) == (given_[3], given_[1])
    with pytest.raises(ValueError, match='has the modules .1, 3., not .1.'):
        manager.in_order(_PAIR, {1: given_[1]})


# Modules


_XML = '''<gpu id="00000000:86:00.0"><gpu_module_id>1</gpu_module_id></gpu>
<gpu id="00000000:05:00.0"><gpu_module_id>N/A</gpu_module_id></gpu>
<gpu id="00000000:B8:00.0">
\t<gpu_module_id>2</gpu_module_id>
</gpu>'''


def test_output_of_nvidia_smi():
    assert module_map.read(_XML) == {1: _MODULES[1], 2: _MODULES[2]}
    assert module_map.read('No devices were found') == {}
    for wrong in (_XML.replace('>2<', '>1<'), _XML.replace('B8:00.0', 'x')):
        with pytest.raises(ValueError):
            module_map.read(wrong)


def test_known_modules_are_kept():
    machine = frozenset({'0000:86:00.0 10de:2330'})
    known = module_map.Known({1: _MODULES[1]}, machine, module_map.plain(
        [manager.Partition(3, (manager.Member(1, links=2),), True)]))
    assert module_map.loads(known.dumps()) == known
    assert module_map.add(known, {2: _MODULES[2]}, machine) == {
        1: _MODULES[1], 2: _MODULES[2]}
    # A card was moved to another module.
    assert module_map.add(known, {3: _MODULES[1]}, machine) == {
        3: _MODULES[1]}
    # With other cards, addresses may have moved.
    assert module_map.add(known, {4: _MODULES[4]}, frozenset()) == {
        4: _MODULES[4]}


@pytest.mark.parametrize('text', [
    '', '[]', '{}', '{"cards": 3, "modules": {}}',
    '{"cards": [], "modules": {"x": "0000:86:00.0"}}',
    '{"cards": [], "modules": {"1": "x"}}',
    '{"cards": [], "modules": {"1": null}}'])
def test_damaged_file_of_modules_is_ignored(text):
    assert module_map.loads(text) == module_map.Known()


def test_cards_of_the_machine():
    functions = [
        build.function('0000:86:00.0', driver='nvidia'),
        build.function('0000:87:00.0', driver='vfio-pci'),
        *build.card('0000:88:00.0', 1, '10de:2330', '10de:2330'),
        build.function('0000:05:00.0', '10de:22a3', class_code=0x068000,
                       driver='nvidia-nvswitch'),
        build.function('0000:06:00.0', '1002:74a1', driver='amdgpu')]
    assert module_map.visible(functions) == {_address('86')}
    assert {card.split()[0] for card in module_map.cards(functions)} == {
        '0000:86:00.0', '0000:87:00.0', '0000:88:00.0'}


def test_contradictions_leave_other_modules():
    """Whatever two maps say, a card has one module and a module one card."""
    addresses = [*_MODULES.values()][:2]
    maps = [dict(zip(modules, chosen, strict=True))
            for size in range(3)
            for modules in itertools.permutations((1, 2, 3), size)
            for chosen in itertools.permutations(addresses, size)]
    for configured, known in itertools.product(maps, maps):
        found, disputed = module_map.agree(configured, known)
        assert len(set(found.values())) == len(found)
        assert not found.keys() & disputed.keys()
        for module, address in found.items():
            assert configured.get(module, address) == address
            assert known.get(module, address) == address
