# SPDX-License-Identifier: Apache-2.0
"""vGPU types on virtual functions: what is offered, set and cleared."""

import contextlib
import errno
import json
import os
import random

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_accel.core import errors
from nova_accel.core import held_devices
from nova_accel.core import hostdev
from nova_accel.core import naming
from nova_accel.core.assignment import consistency
from nova_accel.core.guest import device_state
from nova_accel.core.placement import host_summary
from nova_accel.core.placement import inventory
from nova_accel.host import loader
from nova_accel.host import operate
from nova_accel.host import reader
from nova_accel.host import recorder
from nova_accel.host import tree as trees
from nova_accel.host.kinds import vgpu
from tests import nvidia
from tests.unit import build

SMALL = {'vendor_id': '10de', 'vgpu_type': 'NVIDIA L40S-16Q'}
LARGE = {'vendor_id': '10de', 'vgpu_type': 1155,
         'resource_class': 'CUSTOM_VGPU_LARGE'}
SMALL_NUMBER, LARGE_NUMBER = 1154, 1155
LINES = {1154: '1154  : NVIDIA L40S-16Q\n', 1155: '1155  : NVIDIA L40S-24Q\n'}

PF, ONE, TWO, THREE = '81:00.0', '81:00.4', '81:00.5', '81:00.6'
SERVER = '00000000-0000-4000-8000-000000000001'


def listed(*numbers):
    return nvidia.HEADER + ''.join(LINES[number] for number in numbers)


BOTH = listed(1154, 1155)


def vf(current='0\n', creatable=BOTH, driver='nvidia', **facts):
    """Return the attributes of a VF and, apart, its ``nvidia`` files."""
    return {'physfn': f'../0000:{PF}',
            'driver': driver and f'../../../bus/pci/drivers/{driver}',
            **facts}, {vgpu.CURRENT: current, vgpu.CREATABLE: creatable}


def card(vfs):
    """Return a recording of a card with VFs, given by end of address."""
    devices = {f'pci0000:80/0000:{PF}': {
        'sriov_totalvfs': '32\n', 'sriov_numvfs': f'{len(vfs)}\n',
        'driver': '../../../bus/pci/drivers/nvidia'}}
    files = {}
    for at, (facts, nvidias) in vfs.items():
        place = f'pci0000:80/0000:{at}'
        devices[place] = facts
        files.update({f'sys/devices/{place}/{name}': text
                      for name, text in nvidias.items() if text is not None})
    return build.sysfs(devices, files)


def offered(tree, *specs, kinds=None):
    return reader.read(tree, build.entries(*specs), kinds=kinds)


def units(host):
    """Return the ends of the offered addresses by Region."""
    return {name: [unit.removeprefix('0000:') for unit in found]
            for name, found in build.units(host).items()}


# What is offered

def test_vf_for_vgpus_is_not_offered_by_kind_pci():
    tree = card({ONE: vf(), TWO: vf(current='1154\n', driver='vfio-pci')})
    for spec in ({'product_id': '2330'}, {'product_id': '2330',
                                          'managed': 'yes'}):
        host = offered(tree, spec)
        assert host.devices == ()
        assert {refusal.reason for refusal in host.refusals} == {
            'it is a VF for vGPUs, and a guest cannot use it without a vGPU '
            'type'}
    # The operator sets the types.
    host = offered(tree, {'product_id': '2330', 'managed': 'no'})
    assert list(units(host).values()) == [[TWO]]


@pytest.mark.parametrize('said, variant', [
    (1154, '1154'), ('1154', '1154'), ('NVIDIA L40S-16Q', 'NVIDIA_L40S-16Q'),
    ('1154  : NVIDIA L40S-16Q', 'NVIDIA_L40S-16Q')])
def test_type_is_named_by_number_or_name_or_both(said, variant):
    host = offered(card({
        ONE: vf(), TWO: vf('1154\n', nvidia.HEADER), THREE: vf('1155\n')}),
        {**SMALL, 'vgpu_type': said},
        {**LARGE, 'vgpu_type': 'NVIDIA L40S-24Q'})
    assert units(host)[f'VGPU_{variant}'] == [ONE, TWO]
    assert not host.refusals
    [device] = host.devices
    assert str(device.address) == f'0000:{PF}'
    region = device.regions[-1]
    assert (region.resource_class, region.managed) == ('VGPU', False)


@pytest.mark.parametrize('key, value', [
    ('vgpu_type', ''), ('vgpu_type', 0), ('vgpu_type', '0'),
    ('vgpu_type', -1), ('vgpu_type', 1.5), ('vgpu_type', True),
    ('vgpu_type', ['x']), ('vgpu_type', 'NVIDIA\nL40S'),
    ('vgpu_type', 'x' * 99),
    ('vgpu_type', '0 : NVIDIA L40S-16Q'), ('vgpu_type', 'Tesla\x00'),
    ('max_instances', 0), ('max_instances', -1), ('max_instances', 'many'),
    ('max_instances', 1.5), ('max_instances', True),
    ('gpu_instance', ''), ('gpu_instance', '24gb'), ('gpu_instance', 1),
    ('gpu_instance', '1g.24gb '), ('gpu_instance', '1g.24gb+')])
def test_invalid_value_of_a_key_is_reported(key, value):
    entries, [problem] = reader.parse([json.dumps({**SMALL, key: value})])
    assert not entries
    assert f'{key} ' in str(problem)


def test_entry_without_a_type_is_refused():
    host = offered(card({ONE: vf()}), {'kind': 'vgpu'})
    assert build.refusals(host)[f'0000:{ONE}'] == (
        'its entry names no vGPU type')


@pytest.mark.parametrize('managed, offered_', [('yes', False), ('no', True)])
def test_managed_vf_is_refused(managed, offered_):
    host = offered(card({ONE: vf()}), {**SMALL, 'managed': managed})
    assert [region.managed for device in host.devices
            for region in device.regions] == [False] * offered_
    assert offered_ or 'managed yes' in build.refusals(host)[f'0000:{ONE}']


def test_number_with_another_name_is_refused():
    host = offered(card({ONE: vf()}),
                   {**SMALL, 'vgpu_type': '1154 : NVIDIA L40S-24Q'})
    assert units(host) == {'VGPU_NVIDIA_L40S-24Q': []}
    assert '1154: NVIDIA L40S-16Q' in build.refusals(host)[f'0000:{ONE}']


def test_max_instances_limits_the_total():
    host = offered(card({ONE: vf(), TWO: vf(), THREE: vf()}),
                   {**SMALL, 'max_instances': 2}, LARGE)
    totals = {region.name: region.total for device in host.devices
              for region in device.regions}
    assert totals == {'VGPU_NVIDIA_L40S-16Q': 2, 'CUSTOM_VGPU_LARGE_1155': 3}


def test_first_entry_of_a_type_is_used():
    host = offered(card({ONE: vf(), TWO: vf()}),
                   {'address': f'0000:{ONE}', 'vgpu_type': 1154,
                    'traits': 'CUSTOM_ONE'},
                   {**SMALL, 'max_instances': 1})
    assert units(host) == {'VGPU_1154': [ONE], 'VGPU_NVIDIA_L40S-16Q': [TWO]}


def test_unavailable_type_is_an_empty_region():
    free = card({ONE: vf(), TWO: vf()})
    used = card({ONE: vf('1154\n', listed(1154)), TWO: vf('0\n',
                                                          listed(1154))})
    full = card({ONE: vf('1154\n', nvidia.HEADER), TWO: vf('0\n', '')})
    kinds = loader.open_all(free)
    assert units(offered(free, SMALL, LARGE, kinds=kinds)) == {
        'CUSTOM_VGPU_LARGE_1155': [ONE, TWO],
        'VGPU_NVIDIA_L40S-16Q': [ONE, TWO]}
    names = set()
    for tree, small in ((used, [ONE, TWO]), (full, [ONE])):
        host = offered(tree, {**SMALL, 'vgpu_type': '1154'}, LARGE)
        assert units(host) == {'CUSTOM_VGPU_LARGE_1155': [],
                               'VGPU_1154': small}
        assert not host.refusals
        names.add(tuple(item.name for item in build.inventory(host).offered))
    assert len(names) == 1


def test_vf_with_a_type_of_no_entry_is_refused():
    host = offered(card({ONE: vf('1148\n'), TWO: vf()}), SMALL, LARGE)
    assert units(host) == {'CUSTOM_VGPU_LARGE_1155': [TWO],
                           'VGPU_NVIDIA_L40S-16Q': [TWO]}
    [refusal] = host.refusals
    assert refusal.reason == 'its vGPU type is 1148, which no entry names'
    assert 'write 0' in refusal.remedy


def test_missing_type_is_reported_with_the_listed_types():
    host = offered(card({ONE: vf(creatable=listed(1154))}), SMALL, LARGE)
    # It is an empty Region, so that the other provider keeps its name.
    assert units(host) == {'CUSTOM_VGPU_LARGE_1155': [],
                           'VGPU_NVIDIA_L40S-16Q': [ONE]}
    assert build.refusals(host) == {
        f'0000:{ONE}': 'it cannot have the vGPU type 1155: it lists 1154: '
                       'NVIDIA L40S-16Q'}


def test_card_without_types_is_refused_with_a_remedy():
    host = offered(card({ONE: vf(creatable=nvidia.HEADER)}), SMALL)
    [refusal] = host.refusals
    assert refusal.reason.endswith('it lists none')
    assert 'GPU instances' in refusal.remedy


@pytest.mark.parametrize('facts, reason', [
    ({'driver': 'vfio-pci', 'current': None, 'creatable': None},
     'its driver is vfio-pci, not nvidia'),
    ({'driver': None, 'current': None}, 'its driver is none, not nvidia'),
    ({'current': None}, 'its nvidia/current_vgpu_type cannot be read'),
    ({'creatable': None}, 'its nvidia/creatable_vgpu_types cannot be read'),
    ({'current': ''}, "its nvidia/current_vgpu_type is '', not a number"),
    ({'current': '-1'}, 'not a number'), ({'current': '9' * 99}, 'not a nu'),
    ({'current': '\ufffd\0'}, r"is '\ufffd\x00', not a number"),
    ({'creatable': 'ELF\0'}, r"has a line 'ELF\x00'"),
    ({'creatable': 'nvidia-1154\n'}, "has a line 'nvidia-1154'"),
    ({'creatable': BOTH + 'x : NVIDIA L40S-16Q\n'}, 'has a line '),
])
def test_malformed_vf_hides_no_other(facts, reason):
    host = offered(card({ONE: vf(**facts), TWO: vf()}), SMALL, LARGE)
    assert set(build.refusals(host)) == {f'0000:{ONE}'}
    assert reason in build.refusals(host)[f'0000:{ONE}'].replace(
        '\ufffd', r'\ufffd')
    assert [TWO] == units(host)['VGPU_NVIDIA_L40S-16Q']


def test_a_vf_without_its_card_is_refused():
    tree = card({ONE: vf('1154\n')})
    del tree.links[f'sys/bus/pci/devices/0000:{PF}']
    host = offered(trees.Recording(tree.files, tree.links), LARGE)
    assert host.devices == ()
    assert build.refusals(host) == {
        f'0000:{ONE}': f'its physical function 0000:{PF} is not there'}


@given(current=st.none() | st.text() | st.sampled_from(['0\n', '1154\n']),
       creatable=st.none() | st.text() | st.lists(
           st.sampled_from([*LINES.values(), nvidia.HEADER, 'x\n', '\n'])).map(
           ''.join))
def test_random_attributes_of_a_vf_hide_no_other(current, creatable):
    host = offered(card({ONE: vf(current, creatable), TWO: vf()}),
                   SMALL, LARGE)
    found = units(host)
    assert not host.problems
    assert found['CUSTOM_VGPU_LARGE_1155'][-1:] == [TWO] or (
        ONE in found['VGPU_NVIDIA_L40S-16Q'])
    for name, number in (('VGPU_NVIDIA_L40S-16Q', 1154),
                         ('CUSTOM_VGPU_LARGE_1155', 1155)):
        if ONE in found[name]:
            assert current.strip() == str(number) or (
                int(current) == 0 and LINES[number] in creatable)


def test_physical_functions_and_parents_of_mdevs_are_refused():
    tree = build.sysfs(
        {'pci0000:80/0000:81:00.0': {'sriov_totalvfs': '32\n'},
         'pci0000:80/0000:82:00.0': {}},
        {'sys/devices/pci0000:80/0000:82:00.0/mdev_supported_types/nvidia-1/'
         'available_instances': '1\n'})
    host = offered(tree, SMALL)
    assert build.refusals(host) == {
        '0000:81:00.0': 'it is not a virtual function',
        '0000:82:00.0': 'its driver creates mdevs on it'}
    assert 'mdev_type' in host.refusals[1].remedy


def test_full_card_is_offered_if_the_entry_has_a_number():
    full = card({ONE: vf('1154\n', ''), TWO: vf('1154\n', '')})
    host = offered(full, SMALL)
    assert units(host) == {'VGPU_NVIDIA_L40S-16Q': []}
    assert 'by its number' in host.refusals[0].remedy
    for said, variant in ((1154, '1154'), ('1154 : NVIDIA L40S-16Q',
                                           'NVIDIA_L40S-16Q')):
        assert units(offered(full, {**SMALL, 'vgpu_type': said})) == {
            f'VGPU_{variant}': [ONE, TWO]}


def test_list_of_one_vf_gives_the_number_for_another():
    host = offered(card({ONE: vf('1154\n', ''), TWO: vf()}), SMALL)
    assert units(host) == {'VGPU_NVIDIA_L40S-16Q': [ONE, TWO]}


def test_vf_claimed_by_another_program_is_refused():
    claim = build.entries({'address': f'0000:{ONE}'}, option='[pci] spec')
    host = reader.read(card({ONE: vf(), TWO: vf()}), build.entries(SMALL),
                       claim)
    assert units(host) == {'VGPU_NVIDIA_L40S-16Q': [TWO]}
    assert '[pci] spec' in build.refusals(host)[f'0000:{ONE}']


def test_recording_contains_types():
    tree = card({ONE: vf('1154\n'), TWO: vf()})
    again = recorder.record(tree)
    assert offered(again, SMALL, LARGE) == offered(tree, SMALL, LARGE)
    modelled = build.recorded('l40s-modelled')
    assert recorder.record(modelled).dumps() == modelled.dumps()


# Setting and clearing

class Card:
    """Two cards in a directory, a simulated driver, and the kind vgpu."""

    def __init__(self, tree, manager, specs):
        self.manager = manager
        self.tree = tree
        self.specs = specs
        self.restart()

    def restart(self):
        """Simulate a restart of nova-compute, which loses its memory."""
        self.kind = vgpu.VirtualGpus(self.tree)

    def host(self):
        return offered(self.tree, *self.specs, kinds={'vgpu': self.kind})

    def item(self, name):
        return next(item for item in build.inventory(self.host()).offered
                    if item.region.name == name
                    and item.device.address.bus == 0x41)

    def free(self, name):
        return [str(unit[0]) for unit in self.item(name).region.units
                if str(unit[0]) not in self.manager.current()]

    def prepare(self, at, name, item=None):
        self.kind.prepare(hostdev.Hostdev(build.address(at), ''),
                          item or self.item(name), {})

    def sweep(self, held=()):
        """Release VFs that are not held; return problems by address."""
        problems = {}
        for address in self.kind.prepared(self.host()):
            if str(address) not in held:
                try:
                    self.kind.release(address)
                except errors.AccelError as error:
                    problems[str(address)] = str(error)
        return problems


SMALLS, LARGES = 'VGPU_NVIDIA_L40S-16Q', 'CUSTOM_VGPU_LARGE_1155'
VF, OTHER = '0000:41:00.4', '0000:41:00.5'


@pytest.fixture
def driven(tmp_path):
    build.recorded('l40s-modelled').write(tmp_path)
    with nvidia.VgpuManager(tmp_path) as manager:
        yield Card(trees.open_tree(tmp_path), manager, (SMALL, LARGE))


def test_type_is_set_once_and_cleared(driven):
    driven.prepare(VF, SMALLS)
    driven.prepare(VF, SMALLS)
    assert driven.manager.writes == [(VF, SMALL_NUMBER)]
    assert driven.sweep(held={VF}) == {}
    assert driven.manager.current() == {VF: SMALL_NUMBER}
    assert driven.sweep() == {}
    assert driven.manager.current() == {}
    driven.kind.release(build.address(VF))
    assert driven.manager.writes == [(VF, SMALL_NUMBER), (VF, 0)]


def test_cards_of_one_size_withhold_the_other(driven):
    assert len(driven.free(LARGES)) == len(driven.free(SMALLS)) == 8
    driven.prepare(VF, SMALLS)
    assert driven.free(LARGES) == []
    assert len(driven.free(SMALLS)) == 7
    driven.prepare(OTHER, SMALLS)
    driven.prepare('0000:41:00.6', SMALLS)
    # Full: three times 16 GB.
    assert driven.free(SMALLS) == []
    assert driven.item(SMALLS).region.total == 3
    assert not driven.host().refusals
    driven.sweep()
    assert len(driven.free(LARGES)) == len(driven.free(SMALLS)) == 8


def test_cards_of_several_sizes_give_what_is_left(driven):
    driven.manager.mode = nvidia.MIXED
    driven.manager.list()
    driven.prepare(VF, LARGES)
    assert driven.free(SMALLS) and driven.free(LARGES)
    driven.prepare(OTHER, SMALLS)
    # 8 GB are left.
    assert not driven.free(SMALLS) and not driven.free(LARGES)
    with pytest.raises(errors.AssignmentError, match='1152: NVIDIA L40S-8Q'):
        driven.prepare('0000:41:00.6', SMALLS)
    driven.sweep(held={OTHER})
    assert driven.free(LARGES)


def test_cards_in_mig_mode_give_an_instance_each(tmp_path):
    lines = ('900   : NVIDIA H100-80C\n901   : NVIDIA H100-1-10C\n'
             '902   : NVIDIA H100-3-40C\n')
    tree = build.recorded('l40s-modelled')
    for path in tree.files:
        if path.endswith(vgpu.CREATABLE):
            tree.files[path] = nvidia.HEADER + lines
    tree.write(tmp_path)
    specs = [{'vendor_id': '10de', 'vgpu_type': name} for name in (
        'NVIDIA H100-80C', 'NVIDIA H100-1-10C', 'NVIDIA H100-3-40C')]
    with nvidia.VgpuManager(tmp_path, instances={
            '1-10': 2, '3-40': 1}) as manager:
        driven = Card(trees.open_tree(tmp_path), manager, specs)
        small, large = 'VGPU_NVIDIA_H100-1-10C', 'VGPU_NVIDIA_H100-3-40C'
        assert 'it cannot have the vGPU type NVIDIA H100-80C' in (
            build.refusals(driven.host())[VF])
        driven.prepare(VF, large)
        assert not driven.free(large)
        driven.prepare(OTHER, small)
        driven.prepare('0000:41:00.6', small)
        assert not driven.free(small)
        assert driven.item(small).region.total == 2
        manager.instances = {}
        manager.reboot()
        assert 'GPU instances' in driven.host().refusals[0].remedy


# Several vGPUs of a GPU instance

#: The number of vGPUs of each type that fit on an empty RTX PRO 6000, as its
#: driver reports it ("Max Instances").
IN_MIG_MODE = {1546: 48, 1549: 32, 1561: 4}
TIME_SLICED = {1519: 32, 1520: 32, 1540: 2}


class Blackwell:
    """A card with an entry for each of some types.

    :param types: the number of vGPUs that fit by number of the type
    :param more: other keys of the entries
    """

    def __init__(self, path, types, manager, **more):
        self.manager, self.types = manager, types
        self.tree = trees.open_tree(path)
        self.kinds = {'vgpu': vgpu.VirtualGpus(self.tree)}
        self.entries = build.entries(*({
            'vendor_id': '10de', 'max_instances': limit, **more,
            'vgpu_type': f'{number} : {nvidia.BLACKWELL[number]}',
            'resource_class': f'CUSTOM_{number}'}
            for number, limit in types.items()))

    def items(self):
        """Return the Offered by number of the type."""
        host = reader.read(self.tree, self.entries, kinds=self.kinds)
        return {int(item.region.resource_class.removeprefix('CUSTOM_')): item
                for item in build.inventory(host).offered}

    def totals(self):
        return {number: item.region.total
                for number, item in self.items().items()}

    def used(self):
        """Return the number of vGPUs of each type."""
        current = list(self.manager.current().values())
        return {number: current.count(number) for number in self.types}

    def possible(self):
        """Return the vGPUs that exist and those that fit."""
        found = self.manager.possible('0001:c8:00.2')
        return {number: found[number] for number in self.types}

    def prepare(self, number, count=1):
        """Set a type on VFs that are offered and have none."""
        item, current = self.items()[number], self.manager.current()
        free = [unit[0] for unit in item.region.units
                if str(unit[0]) not in current]
        for vf in free[:count]:
            self.kinds['vgpu'].prepare(hostdev.Hostdev(vf, ''), item, {})

    def release(self, vfs):
        for vf in vfs:
            self.kinds['vgpu'].release(build.address(vf))


@pytest.fixture
def blackwell(tmp_path):
    """Return a function that makes a Blackwell."""
    with contextlib.ExitStack() as managers:
        def make(types, instances=None, mode=nvidia.EQUAL, vfs=48, **more):
            nvidia.blackwell(vfs).write(tmp_path)
            return Blackwell(tmp_path, types, managers.enter_context(
                nvidia.VgpuManager(tmp_path, mode, instances, memory=96)),
                **more)
        yield make


def test_four_gpu_instances_have_48_vgpus(blackwell):
    card = blackwell(IN_MIG_MODE, {'1-24': 4}, gpu_instance='1g.24gb')
    assert card.totals() == card.possible() == IN_MIG_MODE
    card.prepare(1546, 12)
    assert card.totals() == card.possible() == {1546: 48, 1549: 24, 1561: 3}
    card.prepare(1546, 36)
    assert [len(vgpus) for vgpus in
            card.manager.instances_in_use().values()] == [12] * 4
    assert card.totals() == card.possible() == {1546: 48, 1549: 0, 1561: 0}
    # Free the second GPU instance.
    card.release(list(card.manager.current())[12:24])
    assert card.totals() == card.possible() == {1546: 48, 1549: 8, 1561: 1}
    card.prepare(1561)
    assert card.manager.instances_in_use()[4] == [1561]
    assert card.totals() == card.possible() == {1546: 36, 1549: 0, 1561: 1}


def test_types_of_one_size_share_the_card(blackwell):
    card = blackwell(TIME_SLICED)
    assert card.totals() == card.possible() == TIME_SLICED
    card.prepare(1519, 30)
    assert card.totals() == card.possible() == {1519: 32, 1520: 2, 1540: 0}
    card.prepare(1520, 2)
    # 16 VFs are left without a type.
    assert card.totals() == card.possible() == {1519: 30, 1520: 2, 1540: 0}


@pytest.mark.parametrize('types, instances, mode, more', [
    (IN_MIG_MODE, {'1-24': 4}, nvidia.EQUAL, {'gpu_instance': '1g.24gb'}),
    (IN_MIG_MODE, {'1-24': 4}, nvidia.MIXED, {'gpu_instance': '1g.24gb'}),
    (IN_MIG_MODE, {'1-24': 4}, nvidia.EQUAL, {}),
    ({1546: 24, 1573: 1}, {'1-24': 2, '2-48': 1}, nvidia.EQUAL, {}),
    (TIME_SLICED, None, nvidia.EQUAL, {}),
    (TIME_SLICED, None, nvidia.MIXED, {}),
    # One limit is less than what fits.
    (IN_MIG_MODE | TIME_SLICED | {1546: 5}, {'1-24': 3}, nvidia.EQUAL, {})])
def test_type_is_offered_as_long_as_one_more_fits(blackwell, types, instances,
                                                  mode, more):
    """A total hides no vGPU that fits, and counts no VF that is not free."""
    card = blackwell(types, instances, mode, 16, **more)
    chance = random.Random(7)
    for _step in range(25):
        if chance.random() < 0.3:
            card.release(filter(lambda _vf: chance.random() < 0.4,
                                card.manager.current()))
        else:
            with contextlib.suppress(errors.AssignmentError):
                card.prepare(chance.choice(list(types)), chance.choice((1, 5)))
        totals, used, possible = card.totals(), card.used(), card.possible()
        free = 16 - len(card.manager.current())
        for number, limit in types.items():
            is_possible = free and min(limit, possible[number]) > used[number]
            assert (totals[number] > used[number]) == is_possible
            assert totals[number] <= used[number] + free


def test_unused_type_of_another_entry_is_replaced(driven):
    item = driven.item(SMALLS)
    driven.prepare(VF, LARGES)
    driven.prepare(VF, SMALLS, item)
    assert driven.manager.writes == [(VF, LARGE_NUMBER), (VF, 0),
                                     (VF, SMALL_NUMBER)]


def test_type_of_no_entry_is_not_replaced(driven):
    item = driven.item(SMALLS)
    driven.manager.set(VF, 1148)
    with pytest.raises(errors.AssignmentError) as raised:
        driven.prepare(VF, SMALLS, item)
    assert f'device {VF} (10de:26b9)' in str(raised.value)
    assert 'its type is 1148' in str(raised.value)
    assert driven.sweep() == {}
    assert driven.manager.writes == []


@pytest.mark.parametrize('number', [errno.EIO, errno.EINVAL, errno.ENOSPC])
def test_refusal_of_the_driver_is_reported(driven, number):
    def refuse(vf, _number):
        raise OSError(number, os.strerror(number))

    driven.manager.on_write = refuse
    with pytest.raises(errors.AssignmentError) as raised:
        driven.prepare(VF, SMALLS)
    assert str(raised.value) == (
        f'device {VF} (10de:26b9): vGPU type NVIDIA L40S-16Q cannot be set: '
        f'the driver says {os.strerror(number)}')
    assert driven.manager.current() == {}


def test_type_that_became_unavailable_is_reported(driven):
    item = driven.item(SMALLS)
    driven.prepare(OTHER, LARGES)
    with pytest.raises(errors.AssignmentError) as raised:
        driven.prepare(VF, SMALLS, item)
    assert 'it lists 1155: NVIDIA L40S-24Q' in str(raised.value)
    assert driven.manager.writes == [(OTHER, LARGE_NUMBER)]


def test_write_without_effect_is_reported(driven):
    driven.manager.set = lambda vf, number: None
    with pytest.raises(errors.AssignmentError, match='it is still 0'):
        driven.prepare(VF, SMALLS)


def test_vf_that_cannot_be_cleared_is_withheld_and_cleared_later(driven):
    driven.prepare(VF, SMALLS)
    driven.manager.open.add(VF)
    [problem] = driven.sweep().values()
    assert 'Device or resource busy' in problem
    assert VF not in build.units(driven.host())[SMALLS]
    assert 'cannot be cleared' in build.refusals(driven.host())[VF]
    # The words are the same again, so that it is logged once.
    assert list(driven.sweep().values()) == [problem]
    driven.manager.open.clear()
    assert driven.sweep() == {}
    assert driven.manager.current() == {}
    assert VF in build.units(driven.host())[SMALLS]


@pytest.fixture
def stuck(driven):
    """Return cards with two VFs that failed to clear, and could be now."""
    for at in (VF, OTHER):
        driven.prepare(at, SMALLS)
    driven.manager.open.update((VF, OTHER))
    assert set(driven.sweep()) == {VF, OTHER}
    driven.manager.open.clear()
    return driven


def test_vf_cleared_during_prepared_raises_nothing(stuck):
    there = stuck.host()

    class Host:
        devices = ()

        def has(self, address):
            # Another thread's step.
            stuck.kind.release(build.address(VF))
            return there.has(address)

    assert build.address(OTHER) in stuck.kind.prepared(Host())
    assert stuck.kind.prepared(there) == {build.address(OTHER)}


def test_vf_cleared_during_pools_raises_nothing(stuck):
    class Stuck(dict):
        def __contains__(self, address):
            found = super().__contains__(address)
            self.clear()
            return found

    stuck.kind._stuck = Stuck(stuck.kind._stuck)
    for reason in build.refusals(stuck.host()).values():
        assert 'failed' not in reason


def test_restart_keeps_types_of_a_full_card(driven):
    for vf_ in (VF, OTHER, '0000:41:00.6'):
        driven.prepare(vf_, SMALLS)
    item = driven.item(SMALLS)
    assert len(item.region.units) == 3
    driven.restart()
    assert driven.item(SMALLS).region.units == ()
    driven.prepare(VF, SMALLS, item)
    assert len(driven.manager.writes) == 3
    # Another type is replaced.
    driven.manager.set(VF, LARGE_NUMBER)
    driven.prepare(VF, SMALLS, item)
    assert driven.manager.current()[VF] == SMALL_NUMBER


def test_type_in_a_recording_raises():
    tree = build.recorded('l40s-modelled')
    host = offered(tree, SMALL)
    item = build.inventory(host).offered[0]
    with pytest.raises(errors.AssignmentError, match='recording'):
        vgpu.VirtualGpus(tree).prepare(
            hostdev.Hostdev(build.address(VF), ''), item, {})


@pytest.mark.parametrize('function, number', [
    ('../../x', 1), ('', 1), (f'{VF}\n', 1), (VF, -1), (VF, '1'), (VF, True),
    (VF, 1.0)])
def test_invalid_function_or_number_raises(driven, function, number):
    with pytest.raises(ValueError):
        operate.on(driven.tree).set_vgpu_type(function, number)
    assert driven.manager.writes == []


# Held devices

def held(item, at):
    address = build.address(at)
    return hostdev.Hostdev(address, naming.alias(
        'ACCEL0', item.uuid, 0, item.region.ids_of(address),
        item.region.variant), managed=False)


def findings(host, promised, held_):
    offered_ = build.inventory(host).offered
    return consistency.compare(consistency.gather(
        inventory.NodeInventory(host, inventory.Node(build.ROOT, 'host1', {
            item.uuid: item.name for item in offered_})),
        lambda provider: {
            consumer: {'resources': {'VGPU': amount}}
            for consumer, amount in promised.get(provider, {}).items()},
        lambda: held_))


@pytest.mark.parametrize('ready', [True, False])
def test_vf_held_as_one_type_is_not_counted_for_another(driven, ready):
    """Also while no type is set, as after a reboot of the host."""
    driven.manager.mode = nvidia.MIXED
    if ready:
        driven.prepare(VF, SMALLS)
    host, item = driven.host(), driven.item(SMALLS)
    record = {SERVER: (held(item, VF),)}
    assert findings(host, {item.uuid: {SERVER: 1}}, record) == ()
    offered_ = build.inventory(host).offered
    counts = held_devices.counts(offered_, record)
    assert {uuid for uuid, count in counts.items() if count} == {item.uuid}
    free = host_summary.loads(host_summary.dumps(offered_, counts),
                              build.ROOT).units
    assert free[item.uuid] == (8, 7)
    # A domain that is not Nova's takes it from both.
    other = {SERVER: (hostdev.Hostdev(build.address(VF), 'x'),)}
    assert sum(held_devices.counts(offered_, other).values()) == 2 - ready


def test_missing_type_does_not_affect_a_server_with_another():
    host = offered(card({ONE: vf(creatable=listed(1154)),
                         TWO: vf('1154\n')}), SMALL, LARGE)
    item = next(item for item in build.inventory(host).offered
                if item.region.units)
    assert build.refusals(host) == {}
    host = offered(card({ONE: vf(creatable=listed(1154))}), SMALL, LARGE)
    assert build.refusals(host)
    assert findings(host, {item.uuid: {SERVER: 1}},
                    {SERVER: (held(item, f'0000:{ONE}'),)}) == ()


def test_type_set_by_hand_on_a_held_vf_is_reported(driven):
    item = driven.item(SMALLS)
    driven.manager.set(VF, 1148)
    found = findings(driven.host(), {item.uuid: {SERVER: 1}},
                     {SERVER: (held(item, VF),)})
    assert any('its vGPU type is 1148' in str(finding) for finding in found)


def test_state_migrates_only_to_the_same_type(driven):
    host = driven.host()
    items = {item.uuid: item for item in build.inventory(host).offered}
    small, large = driven.item(SMALLS), driven.item(LARGES)
    described = {held(small, VF).alias: device_state.describe(
        held(small, VF), host, items)}
    assert described[held(small, VF).alias].startswith('NVIDIA_L40S-16Q of ')
    assert device_state.pair(described, [held(small, OTHER)], host, items)
    with pytest.raises(errors.AssignmentError, match='1155 of 10de:26b9'):
        device_state.pair(described, [held(large, OTHER)], host, items)


def test_state_migrates_if_the_entry_permits(driven):
    item = driven.item(SMALLS)
    with pytest.raises(errors.AssignmentError, match='live_migratable'):
        device_state.check_source([held(item, VF)], {item.uuid: item})
    said = Card(driven.tree, driven.manager, (
        {**SMALL, 'live_migratable': 'yes'},)).item(SMALLS)
    device_state.check_source([held(said, VF)], {said.uuid: said})
