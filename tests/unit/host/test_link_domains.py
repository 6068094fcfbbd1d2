# SPDX-License-Identifier: Apache-2.0
"""Link domains: as amdgpu shows them, and as the operator's file says."""

import os

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.host import link_domains
from nova_accel.host import reader
from nova_accel.host import recorder
from nova_accel.host import tree
from tests.unit import build

_HGX = build.DATA / 'links' / 'hgx.yaml'
_BUSES = ('0f', '10', '41', '44', '86', '87', 'b8', 'bb')
_HIVE = 13907115649320091649


def _places(buses=_BUSES):
    return {bus: f'pci0000:{bus}/0000:{bus}:00.0' for bus in buses}


def _machine(hives, ids=('0x1002', '0x74a1'), without=()):
    """Return a machine with GPUs under amdgpu.

    In each hive, the first GPU has the directory and the others a link to it.

    :param hives: buses by hive
    :param without: buses of GPUs that are bound to vfio-pci
    """
    places = _places([bus for buses in hives.values() for bus in buses])
    files, shortcuts = {}, {}
    for hive, buses in hives.items():
        joined = [bus for bus in buses if bus not in without]
        for bus in joined:
            info = f'sys/devices/{places[bus]}/{link_domains.HIVE}'
            if bus == joined[0]:
                files[f'{info}/{link_domains.HIVE_ID}'] = f'{hive}\n'
            else:
                shortcuts[
                    info] = f'../../{places[joined[0]]}/{link_domains.HIVE}'
    return build.sysfs({place: {
        'vendor': ids[0], 'device': ids[1], 'class': '0x120000\n',
        'driver': '../../../bus/pci/drivers/'
                  + ('vfio-pci' if bus in without else 'amdgpu')}
        for bus, place in places.items()}, files, shortcuts)


def _cards(*buses):
    return frozenset(f'0000:{bus}:00.0' for bus in buses)


def _host(machine, text=None, tmp_path=None):
    said = model.Links()
    if text is not None:
        path = tmp_path / 'links.yaml'
        path.write_text(text)
        said, broken = reader.parse_links(str(path))
        assert broken == []
    return reader.read(machine, build.entries({'vendor_id': '1002'}),
                       links=said)


def test_eight_gpus_of_one_hive_are_an_island():
    host = _host(_machine({_HIVE: _BUSES}))
    assert host.links == model.Links(islands=(_cards(*_BUSES),))
    assert {str(device.address) for device in host.devices} == _cards(*_BUSES)
    assert host.problems == ()


def test_two_hives_are_two_islands():
    assert set(_host(_machine({7: _BUSES[:4], 8: _BUSES[4:]})).links.islands
               ) == {_cards(*_BUSES[:4]), _cards(*_BUSES[4:])}


def test_cards_bound_to_vfio_are_in_no_hive():
    host = _host(_machine({_HIVE: _BUSES}, without=_BUSES[:3]))
    assert host.links.islands == (_cards(*_BUSES[3:]),)
    assert _host(_machine({_HIVE: _BUSES}, without=_BUSES)
                 ).links == model.Links()


@pytest.mark.parametrize('hive', ['', '0'])
def test_cards_without_hive_id_are_in_no_island(hive):
    assert _host(_machine({hive: _BUSES})).links == model.Links()


def test_hive_of_a_virtual_function_names_its_card():
    [_pf, vf] = places = ('pci0000:41/0000:41:00.0', 'pci0000:41/0000:41:02.0')
    host = reader.read(build.sysfs({place: {
        'driver': '../../../bus/pci/drivers/amdgpu',
        'physfn': '../0000:41:00.0' if place == vf else None}
        for place in places},
        {f'sys/devices/{place}/{link_domains.HIVE}/'
         f'{link_domains.HIVE_ID}': '5\n' for place in places}))
    assert host.links.islands == (_cards('41'),)


@pytest.mark.parametrize('identifying', [True, False])
def test_recording_keeps_hives_without_their_ids(tmp_path, identifying):
    _machine({_HIVE: _BUSES[:4], 8: _BUSES[4:]}).write(tmp_path)
    live = tree.open_tree(tmp_path)
    recording = recorder.record(live, identifying)
    assert set(_host(recording).links.islands) == set(
        _host(live).links.islands) != set()
    # The id of a hive is globally unique: it identifies the machine.
    assert (str(_HIVE) in recording.dumps()) is identifying


def test_partitions_of_an_hgx_baseboard_are_loaded():
    said = link_domains.load(str(_HGX))
    assert said.islands == ()
    assert sorted(map(len, said.partitions)) == [1] * 8 + [2] * 4 + [4, 4, 8]
    assert said.partitions[0] == _cards(*_BUSES)
    assert said.partitions[1] == _cards('86', 'b8', '87', 'bb')
    assert frozenset.union(*said.partitions[7:]) == _cards(*_BUSES)
    host = reader.read(_machine({}), links=said)
    assert host.links == said
    # The machine has none of the cards.
    assert len(host.problems) == 8
    assert reader.read(_machine({'': _BUSES}, ('0x10de', '0x2330')),
                       links=said).problems == ()


def test_file_has_precedence_over_hives(tmp_path):
    host = _host(_machine({_HIVE: _BUSES}), """
partitions:
- devices: ["0000:0f:00.0", "0000:10:00.0"]
islands:
- name: left
  devices: ["0000:41:00.0", "0000:44:00.0"]
""", tmp_path)
    assert host.links == model.Links(
        (_cards('0f', '10'),), (_cards('41', '44'), _cards(*_BUSES[4:])))


def test_missing_card_is_reported_and_stays_in_its_set(tmp_path):
    text = 'partitions: [{devices: [0000:0f:00.0, 0000:10:00.0]}]'
    host = _host(_machine({_HIVE: _BUSES[:1]}), text, tmp_path)
    assert host.links.partitions == (_cards('0f', '10'),)
    assert host.problems == (
        '[nova_accel] link_domains: 0000:10:00.0 does not exist on this host; '
        'partitions that contain it are not offered',)
    # A card that exists but is not offered causes no message.
    assert reader.read(_machine({_HIVE: _BUSES}),
                       links=host.links).problems == ()


def test_virtual_function_in_the_file_is_reported(tmp_path):
    machine = build.sysfs({
        'pci0000:41/0000:41:00.0': {},
        'pci0000:41/0000:41:02.0': {'physfn': '../0000:41:00.0'}})
    host = _host(machine, 'islands: [{devices: ["0000:41:02.0"]}]', tmp_path)
    assert host.problems == (
        '[nova_accel] link_domains: 0000:41:02.0 is a virtual function; name '
        'its card, 0000:41:00.0',)


@pytest.mark.parametrize('text, complaint', [
    ('', ': cannot be understood (it has 0 documents'),
    ('--- {}\n--- {}', ': cannot be understood (it has 2 documents'),
    ('partitions: [', ': cannot be understood ('),
    ('[' * 100_000, ': cannot be understood ('),
    ('{partitions: [], partitions: []}', 'a key appears twice)'),
    ('{a: &x [], b: *x}', 'aliases (*name) are not accepted)'),
    ('a' * (link_domains.MAX_BYTES + 1), ': is larger than'),
    ('[]', ': [] is not keys and values'),
    ('partition: []', ": does not know the key 'partition'; known keys: "
                      'partitions, islands'),
    ('islands:', ", islands: '' is not a list"),
    ('islands: [{}]', ', islands #1: has no devices'),
    ('islands: [{devices: []}]', ', islands #1, devices: is empty'),
    ('islands: [{devices: [[]]}]', ', islands #1, devices #1: [] is not a '
                                   'text'),
    ('islands: [{devices: [a], id: 3}]', "does not know the key 'id'; known "
                                         'keys: name, devices'),
    ('partitions: [{devices: ["0000:81:00.0"]}, {devices: [GPU-1]}]',
     ", partitions #2: 'GPU-1' is not a PCI address; write it as in 0000:"),
    ('islands: [{devices: [0000:81:00.0, 00000000:81:00.0]}]',
     ', islands #1: has 0000:81:00.0 twice'),
    ('islands: [' + '{devices: [0000:81:00.0]}, ' * (
        link_domains.MAX_SETS + 1) + ']',
     ', islands: has more than 4096 sets'),
])
def test_invalid_file_is_reported_with_place_and_reason(tmp_path, text,
                                                        complaint):
    path = tmp_path / 'links.yaml'
    path.write_text(text)
    said, [error] = reader.parse_links(str(path))
    assert said == model.Links()
    assert str(error).startswith(f'[nova_accel] link_domains, {path}')
    assert complaint in str(error)
    assert '\n' not in str(error)
    assert len(str(error)) < 500


@given(text=st.text() | st.binary())
def test_any_file_is_loaded_or_reported(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / 'whatever.yaml'
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    said, broken = reader.parse_links(str(path))
    assert (said == model.Links()) or not broken


def test_path_that_is_not_a_file_raises(tmp_path):
    for path, why in ((tmp_path / 'none', 'No such file or directory'),
                      (tmp_path, 'Is a directory')):
        with pytest.raises(errors.LinksError) as caught:
            link_domains.load(str(path))
        assert f'{path}: cannot be read ({why})' in str(caught.value)
    os.mkfifo(tmp_path / 'pipe')
    with pytest.raises(errors.LinksError, match='pipe: is not a file'):
        link_domains.load(str(tmp_path / 'pipe'))


def test_changed_file_is_read_again(tmp_path):
    path = tmp_path / 'links.yaml'

    def said(text):
        path.with_suffix('.new').write_text(text)
        path.with_suffix('.new').rename(path)
        return reader.parse_links(str(path))[0]

    islands = 'islands: [{devices: [0000:0f:00.0, 0000:10:00.0]}]'
    first = said(islands)
    assert first.islands == (_cards('0f', '10'),)
    assert said(islands.replace('10', '41')).islands == (_cards('0f', '41'),)
    # The earlier content may be outdated.
    assert said('islands: [') == model.Links()
    assert said(islands) == first
    assert link_domains.load(str(path)) is link_domains.load(str(path))
