# SPDX-License-Identifier: Apache-2.0
"""FPGAs: what sysfs shows, what is offered, and what is programmed.

``l1-fpga`` was recorded on an emulated card with the kernel's own drivers;
``fpga-modelled`` follows the kernel's ABI documents.
"""

from concurrent import futures
import json
import pathlib
import time
import types

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_accel.core import errors
from nova_accel.core import hostdev
from nova_accel.core import kind
from nova_accel.core.placement import inventory
from nova_accel.core.placement import providers
from nova_accel.core.request import fpga
from nova_accel.host import fpga as reader
from nova_accel.host import loader
from nova_accel.host import operations
from nova_accel.host import reader as hosts
from nova_accel.host import recorder
from nova_accel.host import tree as trees
from nova_accel.host.kinds import fpga as kinds
from tests.unit import build

_LOOPBACK = 'd8424dc4a4a3c413f89e433683f9040b'
_STREAM = 'f7df405cbd7acf7222f144b0b93acd18'
_CRYPTO = '3a3b3c3d3e3f30313233343536373839'
_REGION = '9926ab6d6c925a68aabca7d84c545738'
_IMAGE = 'a6a12670-7014-4cff-a563-cea949b57fb3'

_VFS = {'kind': 'fpga', 'vendor_id': '8086', 'product_id': '09c5'}
_PORTS = {'kind': 'fpga', 'vendor_id': '8086', 'product_id': '0b31'}
_WHOLE = {'kind': 'fpga', 'vendor_id': '10ee'}
_ALL = (_VFS, _PORTS, _WHOLE)

_DEVICES = 'sys/devices/pci0000:40'
_AFU_ID = {
    '0000:45:00.1': f'{_DEVICES}/0000:40:06.0/0000:45:00.1/'
                    'fpga_region/region2/dfl-port.1/afu_id',
    '0000:45:00.2': f'{_DEVICES}/0000:40:06.0/0000:45:00.2/'
                    'fpga_region/region3/dfl-port.2/afu_id',
    '0000:46:00.1': f'{_DEVICES}/0000:40:07.0/0000:46:00.1/'
                    'fpga_region/region7/dfl-port.5/afu_id'}
_STATE = f'{_DEVICES}/0000:40:08.0/0000:47:00.0/fpga_manager/fpga2/state'
_COMPAT_ID = (f'{_DEVICES}/0000:40:06.0/0000:45:00.0/fpga_region/region0/'
              'dfl-fme.0/dfl-fme-region.0/fpga_region/region1/compat_id')


def _tree(**changes):
    """Return the modelled machine with changed contents of some files."""
    tree = build.recorded('fpga-modelled')
    assert set(changes) <= set(tree.files), set(changes) - set(tree.files)
    return trees.Recording({**tree.files, **changes}, tree.links,
                           tree.folders)


def _host(tree, *specs, kind=None):
    opened = loader.open_all(tree)
    if kind:
        opened['fpga'] = kind
    return hosts.read(tree, build.entries(*(specs or _ALL)), (), opened)


def _offered(host):
    """Return (units, functions in Cyborg's traits) by card and region."""
    return {f'{device.address} {region.variant}'.strip(): (
        region.total, sorted(
            trait.rpartition('_')[2].lower() for trait in region.traits
            if trait.startswith('CUSTOM_FPGA_FUNCTION_ID_INTEL_')))
        for device in host.devices for region in device.regions}


# What sysfs shows


def test_recorded_card_is_read():
    shown = reader.read(build.recorded('l1-fpga'))
    assert shown == {build.address('0000:45:00.0'): reader.Shown(
        regions=('region1',),
        ids=frozenset({'8c3668f9faa081f669528db6eb31577a'}),
        ports=('dfl-port.0',), functions=frozenset({_LOOPBACK}))}


def test_recording_contains_what_is_read():
    for name in ('l1-fpga', 'fpga-modelled'):
        tree = build.recorded(name)
        again = recorder.record(tree)
        assert reader.read(again) == reader.read(tree)
        assert _host(again, {'kind': 'fpga'}) == _host(tree, {'kind': 'fpga'})


def test_machine_without_fpgas_shows_none():
    assert reader.read(build.recorded('l1')) == {}
    assert reader.read(trees.Recording()) == {}


_texts = st.text() | st.sampled_from([
    '', '\n', '0' * 32, 'f' * 32, _CRYPTO, f'{_CRYPTO}\n', 'operating',
    'write error', 'write'])


@given(afu_id=_texts, compat_id=_texts, state=_texts, status=_texts)
def test_random_attributes_do_not_affect_other_regions(
        afu_id, compat_id, state, status):
    host = _host(_tree(**{
        _AFU_ID['0000:45:00.1']: afu_id, _COMPAT_ID: compat_id,
        _STATE: state, _STATE.replace('state', 'status'): status}))
    found = _offered(host)
    assert found['0000:46:00.0 region0'] == (1, [_LOOPBACK])
    assert found['0000:46:00.0 region1'] == (1, [_STREAM])
    for refusal in host.refusals:
        assert '\n' not in refusal.reason
        assert 'failed' not in refusal.reason
    for device in host.devices:
        for region in device.regions:
            assert region.resource_class == 'FPGA'


# What is offered


def test_regions_have_no_ids_as_programming_changes_them():
    regions = [region for device in _host(_tree()).devices
               for region in device.regions]
    assert regions and not any(region.ids for region in regions)


def test_regions_are_offered_with_traits():
    assert _offered(_host(_tree())) == {
        '0000:45:00.0': (2, [_LOOPBACK]),
        '0000:46:00.0 region0': (1, [_LOOPBACK]),
        '0000:46:00.0 region1': (1, [_STREAM]),
        '0000:47:00.0': (1, [])}


def test_whole_card_has_no_function_trait():
    host = _host(build.recorded('l1-fpga'),
                 {'kind': 'fpga', 'product_id': '09c4'})
    # The last guest may have programmed the function that it shows.
    assert _offered(host) == {'0000:45:00.0': (1, [])}


@pytest.mark.parametrize('says, offered', [
    ({}, 0), ({'reset': 'required'}, 0), ({'reset': 'if_possible'}, 1)])
def test_whole_card_without_reset_is_refused_by_default(says, offered):
    recorded = build.recorded('l1-fpga')
    place = trees.follow(recorded, 'sys/bus/pci/devices/0000:45:00.0')
    tree = trees.Recording({**recorded.files, f'{place}/reset_method': ''},
                           recorded.links, recorded.folders)
    host = _host(tree, {'product_id': '09c4', **says, 'program': [
        '/program', '{address}', '{bitstream}']})
    assert len(host.devices) == offered
    assert offered or 'it cannot be reset by itself' in build.refusals(
        host)['0000:45:00.0']


def test_a_card_of_two_functions_is_one_unit():
    """Xilinx' Alveo has one for guests and one for management."""
    group = {'iommu_group': '../../../kernel/iommu_groups/9'}
    tree = build.sysfs({
        'pci0000:80/0000:81:00.0': {**group, 'vendor': '0x10ee\n',
                                    'device': '0x500c\n'},
        'pci0000:80/0000:81:00.1': {**group, 'vendor': '0x10ee\n',
                                    'device': '0x500d\n'}},
        {'sys/devices/pci0000:80/0000:81:00.1/fpga_manager/fpga0/state':
         'write error\n'},
        {'sys/class/fpga_manager/fpga0': '../../devices/pci0000:80/'
         '0000:81:00.1/fpga_manager/fpga0'})
    host = _host(tree, _WHOLE)
    assert {refusal.reason for refusal in host.refusals} == {
        "fpga0 is in state 'write error'"}
    well = trees.Recording({**tree.files, (
        'sys/devices/pci0000:80/0000:81:00.1/fpga_manager/fpga0/state'):
        'operating\n'}, tree.links, tree.folders)
    [device] = _host(well, _WHOLE).devices
    [region] = device.regions
    assert build.units(_host(well, _WHOLE)) == {
        region.name: ['0000:81:00.0 0000:81:00.1']}
    assert {'CUSTOM_FPGA_PRODUCT_ID_500C',
            'CUSTOM_FPGA_PRODUCT_ID_500D'} <= region.traits


def test_entry_sets_class_and_traits():
    [region] = _host(_tree(), {**_WHOLE, 'resource_class': 'alveo',
                               'traits': 'u250'}).devices[0].regions
    assert region.resource_class == 'CUSTOM_ALVEO'
    assert region.traits == {'CUSTOM_U250', 'CUSTOM_FPGA_XILINX',
                             'CUSTOM_FPGA_PRODUCT_ID_5000'}


def test_different_functions_give_no_trait():
    host = _host(_tree(**{_AFU_ID['0000:45:00.2']: _CRYPTO}), _VFS)
    assert _offered(host) == {'0000:45:00.0': (2, [])}


def test_empty_region_gives_no_function_trait():
    host = _host(_tree(**{_AFU_ID['0000:46:00.1']: '0' * 32}), _PORTS)
    assert _offered(host)['0000:46:00.0 region0'] == (1, [])


@pytest.mark.parametrize('text, says', [
    ('', 'cannot be read'), ('\n', 'cannot be read'),
    ('f' * 32, 'does not answer'), ('3AFB', "'3AFB' is not a uuid"),
    ('\0\ufffd' * 500, 'is not a uuid')])
def test_fault_of_one_function_withholds_its_region(text, says):
    host = _host(_tree(**{_AFU_ID['0000:45:00.1']: text}))
    assert '0000:45:00.0' not in _offered(host)
    assert len(_offered(host)) == 3
    reasons = build.refusals(host)
    assert set(reasons) == {'0000:45:00.1', '0000:45:00.2'}
    assert all(says in reason and 'dfl-port.1' in reason
               for reason in reasons.values())


def test_withheld_region_keeps_provider_names():
    def named(host):
        return {provider.name: provider.uuid for provider in
                providers.desired(build.inventory(host))}

    before = named(_host(_tree(), _PORTS))
    host = _host(_tree(**{_AFU_ID['0000:46:00.1']: ''}), _PORTS)
    assert named(host) == before
    assert _offered(host) == {'0000:46:00.0 region0': (0, []),
                              '0000:46:00.0 region1': (1, [_STREAM])}
    assert set(build.refusals(host)) == {'0000:46:00.1'}


@pytest.mark.parametrize('state, status, says', [
    ('write error', 'reconfig CRC error\n',
     "fpga2 is in state 'write error' ('reconfig CRC error')"),
    ('write', '', 'fpga2 is being programmed'),
    ('power off', '', "state 'power off'"),
    ('garbage\x07', '', "state 'garbage\\x07'")])
def test_fault_of_a_manager_withholds_its_card(state, status, says):
    host = _host(_tree(**{_STATE: f'{state}\n',
                          _STATE.replace('state', 'status'): status}))
    assert '0000:47:00.0' not in _offered(host)
    assert says in build.refusals(host)['0000:47:00.0']


@pytest.mark.parametrize('state', ['operating', 'unknown', 'power up', ''])
def test_card_of_a_manager_without_fault_is_offered(state):
    assert '0000:47:00.0' in _offered(_host(_tree(**{_STATE: state})))


def _without(tree, *functions):
    """Return a tree in which functions are in guests and show nothing."""
    return trees.Recording(tree.files, {
        name: target for name, target in tree.links.items()
        if not (name.startswith('sys/class/fpga')
                and any(f'/{function}/' in target for function in functions))},
        tree.folders)


class _Changing:
    """A Tree whose content a test can replace."""

    def __init__(self, tree):
        self.tree = tree

    def __getattr__(self, name):
        return getattr(self.tree, name)


@pytest.mark.parametrize('spec, card, functions', [
    (_VFS, '0000:45:00.0', ('0000:45:00.1', '0000:45:00.2')),
    (_PORTS, '0000:46:00.0 region0', ('0000:46:00.1',)),
    ({'kind': 'fpga', 'product_id': '09c4'}, '0000:45:00.0',
     ('0000:45:00.0',))])
def test_regions_held_by_guests_keep_their_traits(spec, card, functions):
    shown = build.recorded('l1-fpga' if len(spec) == 2 else 'fpga-modelled')
    tree = _Changing(shown)
    kind = kinds.Regions(tree)
    before = _host(tree, spec, kind=kind)
    tree.tree = _without(shown, *functions)
    assert _host(tree, spec, kind=kind).devices == before.devices
    # A new enumerator has not seen the earlier content.
    assert _offered(_host(tree, spec))[card][1] == []


def test_one_machine_is_read_once():
    tree = _Changing(_tree())
    kind = kinds.Regions(tree)

    class Enumerator:
        """Programs the region between two calls."""

        def pools(self, function, entry, machine):
            yield from kind.pools(function, entry, machine)
            tree.tree = _tree(**{path: _CRYPTO for path in _AFU_ID.values()})

    host = _host(tree, _VFS, kind=Enumerator())
    assert _offered(host) == {'0000:45:00.0': (2, [_LOOPBACK])}
    assert _offered(_host(tree, _VFS, kind=kind)) == {
        '0000:45:00.0': (2, [_CRYPTO])}


# Entries


@pytest.mark.parametrize('spec, says', [
    ({'program': 'fpga'}, 'neither "fpga_manager" nor a list of words'),
    ({'program': {}}, 'neither'), ({'program': []}, 'is not a list of words'),
    ({'program': ['/x', 3]}, 'is not a list of words'),
    ({'program': ['/x', '']}, 'is not a list of words'),
    ({'program': ['x', '{bitstream}']}, 'absolute path'),
    ({'program': ['/x', '{address}']}, 'has no {bitstream}'),
    ({'program': ['/{bitstream}']}, 'has no {bitstream}'),
    ({'program': ['/x', '{bitstream}', '{image}']}, 'has {image}'),
    ({'program_timeout': 0}, 'is not a number of seconds'),
    ({'program_timeout': True}, 'is not a number of seconds'),
    ({'program_timeout': '5'}, 'is not a number of seconds'),
    ({'program_timeout': 10 ** 9}, '1 to 3600')])
def test_invalid_entry_is_reported(spec, says):
    entries, [problem] = hosts.parse([json.dumps(spec)])
    assert entries == []
    assert says in str(problem)


def test_entry_with_program_is_of_kind_fpga():
    [entry] = build.entries({'program': ['/x', '-b={bitstream}']})
    assert entry.kind == 'fpga'
    assert entry.setting('program') == ('/x', '-b={bitstream}')


# Programming


@pytest.fixture
def machine(tmp_path):
    """Write the modelled machine as real files."""
    build.recorded('fpga-modelled').write(tmp_path)
    (tmp_path / 'bitstream').write_text(_CRYPTO)
    return tmp_path


def _script(machine, text):
    """Write a vendor's command; ``$1`` is the bitstream."""
    path = machine / 'program'
    path.write_text(f'#!/bin/sh\n{text}\n')
    path.chmod(0o755)
    return [str(path), '{bitstream}', '{address}', '{region}']


def _show(machine, *functions):
    return '; '.join(f'cat $1 >{machine}/{_AFU_ID[function]}'
                     for function in functions) + (
        f'; echo $2 $3 >>{machine}/log')


class _Card:
    """A region of the modelled machine with its entry."""

    def __init__(self, machine, spec, number=0):
        self.machine = machine
        self.tree = trees.open_tree(machine / 'sys')
        self.kind = kinds.Regions(self.tree)
        self._spec = spec
        self._number = number

    def host(self):
        return _host(self.tree, self._spec, kind=self.kind)

    def item(self):
        [device] = self.host().devices
        return inventory.Offered('', '', device, device.regions[self._number])

    def prepare(self, bitstream=None, traits='', address=None,
                project='acme'):
        item = self.item()
        address = address or item.region.units[0][0]
        self.kind.prepare(
            hostdev.Hostdev(address, ''), item,
            kind.DeviceConfig(bitstream, frozenset(traits.split()), project))

    def is_programmed(self, project='acme'):
        item = self.item()
        return self.kind.is_programmed(hostdev.Hostdev(
            item.region.units[0][0], ''), item, _IMAGE, project)

    def problem(self, *args, **kwargs):
        with pytest.raises(errors.AssignmentError) as caught:
            self.prepare(*args, **kwargs)
        assert '\n' not in str(caught.value)
        return str(caught.value)

    def bitstream(self, **facts):
        return fpga.Bitstream(_IMAGE, str(self.machine / 'bitstream'),
                              **facts)

    def log(self):
        path = self.machine / 'log'
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def card(machine):
    return _Card(machine, {**_VFS, 'program': _script(machine, _show(
        machine, '0000:45:00.1', '0000:45:00.2'))})


def test_same_bitstream_is_programmed_once_for_a_project(card):
    card.prepare(card.bitstream(function=_CRYPTO))
    assert card.is_programmed()
    card.prepare(card.bitstream(function=_CRYPTO))
    card.prepare()
    assert card.is_programmed()
    card.prepare(card.bitstream(function=_CRYPTO))
    assert card.log() == ['0000:45:00.0 0']
    assert _offered(card.host()) == {'0000:45:00.0': (2, [_CRYPTO])}


def test_state_while_vfio_has_the_functions_does_not_count(machine, card):
    card.prepare(card.bitstream(function=_CRYPTO))
    regions = [path for function in ('0000:45:00.1', '0000:45:00.2')
               for path in (machine / _AFU_ID[function]).parents
               if path.name == 'fpga_region']
    script = (machine / 'program').read_text()
    (machine / 'program').write_text(script + ''.join(
        f'mv {path} {path}.hidden\n' for path in regions))
    card.prepare(card.bitstream(function=_CRYPTO), project='rival')
    for path in regions:
        path.with_name('fpga_region.hidden').rename(path)
    card.prepare(card.bitstream(function=_CRYPTO), project='rival')
    assert len(card.log()) == 2


@pytest.mark.parametrize('then', [
    lambda card: card.prepare(card.bitstream(function=_CRYPTO),
                              project='rival'),
    # It shares the region with a guest of the first project.
    lambda card: card.prepare(card.bitstream(
        function=_CRYPTO, shared=True, conflicting_servers=('first',)),
        project='rival'),
    lambda card: card.prepare(project='rival'),
    lambda card: card.prepare(project=''),
    lambda card: card.kind.forget(card.item()),
    lambda card: setattr(card, 'kind', kinds.Regions(card.tree))])
def test_region_is_programmed_again_after_others(card, then):
    """It shows the same function all the time."""
    card.prepare(card.bitstream(function=_CRYPTO))
    then(card)
    count = len(card.log())
    assert not card.is_programmed()
    card.prepare(card.bitstream(function=_CRYPTO))
    assert len(card.log()) == count + 1


def test_shown_function_is_programmed_unless_it_was_by_us(card):
    (card.machine / 'bitstream').write_text(_LOOPBACK)
    for project in ('acme', 'acme', '', ''):
        card.prepare(card.bitstream(function=_LOOPBACK), project=project)
    assert len(card.log()) == 3


def test_stopped_server_of_another_project_shares_its_region(card):
    """It may be about to start."""
    card.prepare(card.bitstream(function=_CRYPTO))
    card.prepare(card.bitstream(function=_CRYPTO, shared=True,
                                shared_with_others=True), project='rival')
    assert len(card.log()) == 1


@pytest.mark.parametrize('facts', [{'function': _CRYPTO}, {}])
def test_region_is_programmed_once_for_two_groups_of_a_server(card, facts):
    card.prepare(card.bitstream(**facts))
    for _group in range(2):
        card.prepare(card.bitstream(**facts, shared=True), project='rival')
    assert len(card.log()) == 2


def test_others_of_a_project_share_what_they_cannot_program(card):
    """After a restart of nova-compute as well."""
    card.prepare(card.bitstream(function=_CRYPTO))
    for new in (card.kind, kinds.Regions(card.tree)):
        card.kind = new
        card.prepare(card.bitstream(function=_CRYPTO, shared=True,
                                    conflicting_servers=('first',)))
    assert len(card.log()) == 1
    # This tells nothing of what the region had before.
    card.prepare(card.bitstream(function=_CRYPTO))
    assert len(card.log()) == 2


def test_present_function_is_not_programmed_even_with_rivals(card):
    card.prepare(card.bitstream(function=_LOOPBACK,
                                conflicting_servers=('other',)))
    assert card.log() == []


def test_whole_card_is_programmed_at_each_start(tmp_path):
    """The last guest can have changed the function that it shows."""
    build.recorded('l1-fpga').write(tmp_path)
    (tmp_path / 'bitstream').write_text(_LOOPBACK)
    card = _Card(tmp_path, {'product_id': '09c4', 'program': _script(
        tmp_path, f'echo $2 >>{tmp_path}/log')})
    for count in (1, 2):
        card.prepare(card.bitstream(function=_LOOPBACK, shared=True))
        assert card.log() == ['0000:45:00.0'] * count


def test_whole_card_is_programmed_once_for_all_functions(tmp_path):
    group = {'iommu_group': '../../../kernel/iommu_groups/9',
             'vendor': '0x10ee\n'}
    build.sysfs({f'pci0000:80/0000:81:00.{number}': group
                 for number in range(2)}).write(tmp_path)
    (tmp_path / 'bitstream').touch()
    card = _Card(tmp_path, {**_WHOLE, 'program': _script(
        tmp_path, f'echo $2 >>{tmp_path}/log')})
    [unit] = card.item().region.units
    for _start in range(2):
        for address in unit:
            card.prepare(card.bitstream(), address=address)
    assert card.log() == ['0000:81:00.0'] * 2


def test_concurrent_servers_program_once(card):
    with futures.ThreadPoolExecutor() as pool:
        for done in [pool.submit(card.prepare, card.bitstream(
                function=_CRYPTO)) for _number in range(4)]:
            done.result()
    assert card.log() == ['0000:45:00.0 0']


def test_region_held_by_other_servers_is_not_programmed(card):
    assert 'while other servers hold the region: a, b' in card.problem(
        card.bitstream(function=_CRYPTO, conflicting_servers=('a', 'b')))
    assert card.log() == []
    assert _offered(card.host()) == {'0000:45:00.0': (2, [_LOOPBACK])}


def test_bitstream_without_function_is_programmed_unless_shared(card):
    for shared in (False, True, False):
        card.prepare(card.bitstream(shared=shared))
    # The second server shares the region, so its bitstream is present.
    assert len(card.log()) == 2


def test_one_of_several_regions_is_programmed(machine):
    card = _Card(machine, {**_PORTS, 'program': _script(
        machine, _show(machine, '0000:46:00.1'))})
    card.prepare(card.bitstream(function=_CRYPTO))
    assert card.log() == ['0000:46:00.0 0']
    other = _Card(machine, {**_PORTS, 'program': _script(
        machine, _show(machine, '0000:46:00.1'))}, 1)
    assert f'shows function {_STREAM}, not {_CRYPTO}' in other.problem(
        other.bitstream(function=_CRYPTO))
    assert other.log() == ['0000:46:00.0 0', '0000:46:00.0 1']
    assert _offered(other.host()) == {
        '0000:46:00.0 region0': (1, [_CRYPTO]),
        '0000:46:00.0 region1': (0, [_STREAM])}


@pytest.mark.parametrize('program', [
    'fpga_manager', ['/program', '{bitstream}', '{address}']])
def test_program_must_name_the_region_if_there_are_several(machine, program):
    """Another server may hold the region that it would choose."""
    manager = machine / 'sys/class/fpga_manager/fpga1'
    (manager.resolve() / 'firmware').write_text('')
    card = _Card(machine, {**_PORTS, 'program': program}, 1)
    assert 'name a command with {region}' in card.problem(
        card.bitstream(function=_CRYPTO))
    assert (manager / 'firmware').read_text() == ''


def test_regions_of_a_card_are_programmed_one_after_another(machine):
    """They share one manager, whose state may be about the other region."""
    state = (machine / 'sys/class/fpga_manager/fpga1').resolve() / 'state'
    go_on = machine / 'go-on'
    script = _script(machine, f"""
        test "$(cat {state})" != write || exit 3
        echo write >{state}
        while [ ! -e {go_on} ]; do sleep 0.01; done
        case $3 in 0) cat $1 >{machine}/{_AFU_ID['0000:46:00.1']};; esac
        echo $3 >>{machine}/log; echo operating >{state}""")
    one = _Card(machine, {**_PORTS, 'program': script}, 0)
    two = _Card(machine, {**_PORTS, 'program': script}, 1)
    two.kind = one.kind
    everything = _offered(one.host())
    with futures.ThreadPoolExecutor() as pool:
        first = pool.submit(one.prepare, one.bitstream(function=_CRYPTO))
        while state.read_text() != 'write\n' and not first.done():
            time.sleep(0.01)
        assert _offered(one.host()) == everything
        second = pool.submit(two.prepare, two.bitstream())
        go_on.write_text('')
        first.result()
        second.result()
    assert one.log() == ['0', '1']
    assert not build.refusals(one.host())


def test_whole_card_with_several_regions_is_not_programmed(machine):
    for path in (machine / _DEVICES / '0000:40:07.0').glob('0000:46:00.[12]'):
        (machine / 'sys/bus/pci/devices' / path.name).unlink()
    (machine / _DEVICES / '0000:40:07.0/0000:46:00.0/sriov_numvfs'
     ).write_text('0\n')
    card = _Card(machine, {'kind': 'fpga', 'product_id': '0b30', 'program':
                           _script(machine, 'exit 0')})
    assert 'has 2 regions' in card.problem(card.bitstream())


def test_failed_region_is_withheld_until_its_state_is_repaired(card):
    pathlib.Path(card.machine / 'program').write_text(
        '#!/bin/sh\nprintf "\\033[31mno\\n"; exit 1\n')
    said = card.problem(card.bitstream())
    assert said.startswith('device 0000:45:00.0 (8086:09c4): bitstream '
                           f'{_IMAGE} was programmed and ')
    assert "ended with 1 and said '\\x1b[31mno'" in said
    for _round in range(2):
        assert 'ended with 1' in build.refusals(card.host())['0000:45:00.1']
    # The operator programs the region by hand, and is half done.
    for function, text in (('0000:45:00.1', ''), ('0000:45:00.2', _CRYPTO)):
        (card.machine / _AFU_ID[function]).write_text(text)
    assert card.host().devices == ()
    assert 'ended with 1' in build.refusals(card.host())['0000:45:00.1']
    (card.machine / _AFU_ID['0000:45:00.1']).write_text(_CRYPTO)
    assert _offered(card.host()) == {'0000:45:00.0': (2, [_CRYPTO])}


def test_failed_region_is_programmed_again_for_an_allocated_server(machine):
    card = _Card(machine, {**_PORTS, 'program': _script(
        machine,
        _show(machine, '0000:46:00.1') + f'; test -e {machine}/good')})
    for count in (1, 2):
        assert 'ended with 1' in card.problem(
            card.bitstream(function=_CRYPTO),
            address=build.address('0000:46:00.1'))
        assert len(card.log()) == count
        assert _offered(card.host())['0000:46:00.0 region0'][0] == 0
    (machine / 'good').touch()
    card.prepare(card.bitstream(function=_CRYPTO),
                 address=build.address('0000:46:00.1'))
    assert _offered(card.host())['0000:46:00.0 region0'] == (1, [_CRYPTO])


def test_unknown_outcome_counts_as_failure(card, monkeypatch):
    def die(*args):
        raise RuntimeError('the helper\ndied')
    monkeypatch.setattr(operations.Operations, 'program_by_command', die)
    assert "RuntimeError: the helper\\ndied" in card.problem(
        card.bitstream())
    assert 'the helper' in build.refusals(card.host())['0000:45:00.1']


def test_region_without_ports_is_programmed_once(card):
    """Its functions stay bound to vfio-pci."""
    for _round in range(2):
        card.host()
        for link in (card.machine / 'sys/class/fpga_region').iterdir():
            if '/0000:45:00.' in str(link.resolve()):
                link.unlink()
    card.prepare(card.bitstream(function=_CRYPTO))
    card.prepare(card.bitstream(function=_CRYPTO, shared=True))
    assert len(card.log()) == 1
    assert _offered(card.host()) == {'0000:45:00.0': (2, [])}


def test_command_that_cannot_start_withholds_nothing(card):
    (card.machine / 'program').unlink()
    assert 'cannot be run: [Errno 2]' in card.problem(card.bitstream())
    assert _offered(card.host()) == {'0000:45:00.0': (2, [_LOOPBACK])}


def test_a_recording_is_not_programmed(machine):
    card = _Card(machine, {**_VFS, 'program': _script(machine, 'exit 0')})
    card.tree = build.recorded('fpga-modelled')
    card.kind = kinds.Regions(card.tree)
    assert 'recording' in card.problem(card.bitstream())


def test_allocated_function_is_present(card):
    card.prepare(traits=f'CUSTOM_NOVA_ACCEL {fpga.function_trait(_LOOPBACK)} '
                 f'CUSTOM_FPGA_FUNCTION_ID_INTEL_{_LOOPBACK.upper()}')
    card.prepare()


def test_changed_function_of_an_allocation_raises(card):
    for function in ('0000:45:00.1', '0000:45:00.2'):
        (card.machine / _AFU_ID[function]).write_text(_CRYPTO)
    said = card.problem(traits=fpga.function_trait(_LOOPBACK))
    assert _LOOPBACK.upper() in said
    assert f'function {_CRYPTO} is programmed now' in said


def test_busy_region_is_offered_as_before(card):
    seen = []

    class Kind(kinds.Regions):
        def _by_command(self, *args):
            (card.machine / _AFU_ID['0000:45:00.1']).write_text('')
            (card.machine / _AFU_ID['0000:45:00.2']).write_text(_CRYPTO)
            seen.append(_offered(_host(card.tree, _VFS, kind=self)))
            return super()._by_command(*args)

    card.kind = Kind(card.tree)
    card.prepare(card.bitstream(function=_CRYPTO))
    assert seen == [{'0000:45:00.0': (2, [_LOOPBACK])}]


def test_concurrent_first_calls_share_one_lock(card, monkeypatch):
    made, entered = [], []

    class Lock:
        def __init__(self):
            made.append(self)
            if len(made) == 1:
                # Another thread creates a lock first.
                card.prepare()

        def __enter__(self):
            entered.append(self)

        def __exit__(self, *_error):
            pass

    monkeypatch.setattr(kinds, 'threading', types.SimpleNamespace(Lock=Lock))
    card.kind = kinds.Regions(card.tree)
    card.prepare()
    [one, other] = entered
    assert one is other


def test_failure_during_a_reading_withholds_the_region(card, monkeypatch):
    """The reading began before the failure and does not show it."""
    pathlib.Path(card.machine / 'program').write_text(
        f'#!/bin/sh\n{_show(card.machine, "0000:45:00.1", "0000:45:00.2")}\n'
        'exit 1\n')
    read = reader.read

    def read_slowly(tree):
        monkeypatch.setattr(reader, 'read', read)
        shown = read(tree)
        assert 'ended with 1' in card.problem(card.bitstream())
        return shown

    monkeypatch.setattr(reader, 'read', read_slowly)
    for _round in range(2):
        assert 'ended with 1' in build.refusals(card.host())['0000:45:00.1']


def test_programming_during_a_reading_is_remembered(
        card, monkeypatch):
    """Also when a guest holds the functions, so that they show nothing."""
    read = reader.read

    def read_slowly(tree):
        monkeypatch.setattr(reader, 'read', read)
        shown = read(tree)
        card.prepare(card.bitstream(function=_CRYPTO))
        return shown

    monkeypatch.setattr(reader, 'read', read_slowly)
    assert _offered(card.host()) == {'0000:45:00.0': (2, [_LOOPBACK])}
    card.tree = card.kind._tree = _without(
        _tree(), '0000:45:00.1', '0000:45:00.2')
    assert _offered(card.host()) == {'0000:45:00.0': (2, [_CRYPTO])}


def test_prepared_returns_nothing(card):
    assert list(card.kind.prepared(card.host())) == []
