# SPDX-License-Identifier: Apache-2.0
"""The string with places and units for the scheduler."""

import base64
import gc
import itertools
import json
import random
import uuid
import weakref
import zlib

import hypothesis
from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_accel.core import model
from nova_accel.core.placement import host_summary
from nova_accel.core.request import affinity
from nova_accel.core.request import device_profile
from nova_accel.core.solver import arrange
from nova_accel.core.solver import fragmentation
from tests.unit import build


def _offered(cards, names=('CUSTOM_GPU',), location=None, total=1):
    """Cards that have a Region of each name."""
    return build.inventory(model.Host(devices=tuple(
        build.device(*(build.region(name, total, bus=card % 256)
                       for name in names),
                     at=f'{card // 256:04x}:{card % 256:02x}:00.0',
                     location=location or model.Location(
                         card // 8, f'pci{card // 256:04x}:{card % 256:02x}',
                         ('port',), f'0000:{card % 256:02x}:01.0'))
        for card in range(cards)))).offered


def _places(items):
    """The places that the scheduler should get."""
    return {item.uuid: model.Place(
        item.device.location.numa_node, item.device.location.root or None,
        item.device.location.switch, str(item.device.address))
        for item in items}


def _loads(items, *more):
    text = host_summary.dumps(items, *more)
    assert text.isascii()
    assert len(text) <= host_summary.MAX_BYTES
    return host_summary.loads(text, build.ROOT)


def test_format_of_the_string():
    items = _offered(1, location=model.Location(
        7, 'pci10000:e0', ('port',), '10000:e1:00.0'))
    links = model.Links((frozenset({'0000:00:00.0', '0000:01:00.0'}),))
    assert host_summary.dumps(items, {items[0].uuid: 1}, links, {9: 7}) == (
        '{"v":2,"places":[[7,"pci10000:e0","10000:e1:00.0"]],'
        '"cards":[["0000:00:00.0",0,[[null,1,0]]]],'
        '"partitions":[[0,"0000:01:00.0"]],"cpuless_nodes":[[9,7]]}')
    items = _offered(1, ('A', 'B'), model.Location(), 8)
    assert host_summary.dumps(items) == (
        '{"v":2,"places":[[null,null,null]],"names":["A","B"],'
        '"cards":[["0000:00:00.0",0,[[0,8,8],[1,8,8]]]]}')


def test_summary_of_nothing_offered_is_empty():
    assert _loads([]) == host_summary.Summary()


_addresses = st.builds(
    '{:04x}:{:02x}:{:02x}.{}'.format, st.integers(0, 0x11000),
    st.integers(0, 255), st.integers(0, 31), st.integers(0, 7))
_locations = st.builds(
    model.Location, st.none() | st.integers(0, 9),
    st.sampled_from(['', 'pci0000:40', 'pci10000:e0']), st.just(()),
    st.none() | _addresses)
_names = st.lists(st.text(
    st.characters(codec='utf-8'), max_size=9), min_size=1, max_size=4,
    unique=True)


@st.composite
def _hosts(draw):
    devices = tuple(
        build.device(*(build.region(name, draw(st.integers(1, 9)))
                       for name in draw(_names)),
                     at=address, location=draw(_locations))
        for address in draw(st.lists(_addresses, max_size=9, unique=True)))
    known = [str(device.address) for device in devices]
    member = st.sampled_from(known) | _addresses if known else _addresses
    sets = st.lists(st.frozensets(member, min_size=1, max_size=9),
                    max_size=5).map(tuple)
    return model.Host(devices=devices, links=model.Links(
        draw(sets), draw(sets), draw(st.frozensets(member, max_size=3))))


_cpuless_nodes = st.dictionaries(st.integers(0, 99), st.integers(0, 99))


@given(_hosts(), _cpuless_nodes, st.randoms())
def test_summary_can_be_dumped_and_loaded(host, cpuless_nodes, chance):
    items = build.inventory(host).offered
    held = {item.uuid: chance.randint(0, item.region.total)
            for item in items}
    loaded = _loads(items, held, host.links, cpuless_nodes)
    assert loaded.cpuless_nodes == cpuless_nodes
    assert loaded.places == _places(items)
    assert loaded.units == {
        item.uuid: (item.region.total, item.region.total - held[item.uuid])
        for item in items}
    assert loaded.links == host.links


def _switched(cards):
    """The partitions of baseboards of eight: 8, 4+4, 2+2+2+2, ones."""
    addresses = [f'0000:{card:02x}:00.0' for card in range(cards)]
    return model.Links(tuple(
        frozenset(addresses[start:start + size]) for size in (8, 4, 2, 1)
        for start in range(0, cards, size)))


def test_summary_of_eight_cards_is_readable_json():
    items = _offered(8)
    text = host_summary.dumps(items, {}, _switched(8))
    assert json.loads(text)['v'] == 2
    assert len(text) < 1000


def test_1024_regions_fit_whole():
    chance = random.Random(5)
    # Random names compress as badly as possible.
    devices = tuple(build.device(
        *(build.region(f'CUSTOM_NPU_{chance.getrandbits(32):08x}', 8)
          for _region in range(16)),
        at=f'{chance.getrandbits(16):04x}:{card:02x}:00.0',
        location=model.Location(card // 8, f'pci0000:{card:02x}', (),
                                f'0000:{card:02x}:01.0'))
        for card in range(64))
    items = build.inventory(model.Host(devices=devices)).offered
    held = {item.uuid: chance.randint(0, 8) for item in items}
    loaded = _loads(items, held, _switched(64))
    assert len(loaded.places) == 1024
    assert loaded.places == _places(items)
    assert loaded.units == {item.uuid: (8, 8 - held[item.uuid])
                            for item in items}
    assert loaded.links == _switched(64)


def _random(cards, seed=1):
    """Cards with random data, which compresses badly."""
    chance = random.Random(seed)

    def number(bits):
        return f'{chance.getrandbits(bits):0{bits // 4}x}'

    return build.inventory(model.Host(devices=tuple(build.device(
        build.region(), at=f'{number(32)}:{number(8)}:00.0',
        location=model.Location(chance.randint(0, 99), f'pci{number(32)}',
                                (), f'{number(32)}:{number(8)}:00.0'))
        for _card in range(cards)))).offered


def test_places_are_reduced_before_links_are_dropped():
    items = _random(1100)
    links = model.Links((frozenset(
        str(item.device.address) for item in items[:4]),))
    loaded = _loads(items, {}, links)
    assert loaded.links == links
    assert loaded.places == {
        provider: model.Place(place.numa_node, None, None, place.device)
        for provider, place in _places(items).items()}


def test_links_are_dropped_before_regions():
    items = _offered(16)
    addresses = [str(item.device.address) for item in items]
    links = model.Links(tuple(map(frozenset, itertools.islice(
        itertools.combinations(addresses, 7), 11000))))
    loaded = _loads(items, {}, links)
    assert loaded.links == model.Links()
    assert loaded.places == _places(items)


def test_links_that_exceed_the_decompressed_limit_are_dropped():
    items = _offered(64)
    everything = frozenset(str(item.device.address) for item in items)
    loaded = _loads(items, {}, model.Links((everything,) * 4096))
    assert loaded.links == model.Links()
    assert loaded.places == _places(items)


@pytest.mark.parametrize('count', [1500, 5000])
def test_as_many_regions_are_kept_as_fit(count):
    items = _random(count)
    loaded = _loads(items)
    # The first Regions are kept, and no more than necessary is left out.
    assert list(loaded.units) == [
        item.uuid for item in items[:len(loaded.units)]]
    assert len(loaded.units) > 1200


def _packed(content):
    return 'zlib:' + base64.b64encode(zlib.compress(content)).decode()


@given(st.text() | st.binary() | st.none() | st.integers()
       | st.text().map('zlib:{}'.format)
       | st.binary().map(lambda raw: 'zlib:' + base64.b64encode(raw).decode())
       | st.binary().map(_packed) | st.text().map(json.dumps))
def test_whatever_the_stats_hold_can_be_loaded(text):
    assert host_summary.loads(text, build.ROOT) == host_summary.Summary()


@pytest.mark.parametrize('root', [None, '', 'no uuid', 7])
def test_a_node_without_a_uuid_has_no_providers(root):
    assert host_summary.loads(host_summary.dumps(_offered(2)),
                              root).places == {}


_plain = (st.none() | st.booleans() | st.integers(-2, 3) | st.floats()
          | st.sampled_from(['', 'a', '0000:81:00.0', '\ud800'])
          | st.sampled_from([1 << 31, 10 ** 400, -10 ** 400]))
_rows = st.recursive(_plain, lambda inner: st.lists(inner, max_size=4)
                     | st.dictionaries(st.sampled_from('vx'), inner),
                     max_leaves=12)


def _arrange_and_weigh(loaded):
    """Use a summary as nova-scheduler does."""
    stocks = [arrange.AvailableUnits(provider, 'A', frozenset(), 1, place, 1)
              for provider, place in loaded.places.items()]
    groups = dict.fromkeys(('ACCEL0', 'ACCEL1'),
                           device_profile.Group({'A': 1}, {}))
    around = arrange.HostContext(frozenset({0}), links=loaded.links)
    for key, same in itertools.product(affinity.KEYS, (True, False)):
        found = arrange.arrange(
            groups, stocks, [affinity.Rule(key, same, tuple(groups))], around)
        fragmentation.after(stocks, dict.fromkeys(found.chosen.values(), 1),
                            loaded.links)
    assert 0 <= fragmentation.free_share(loaded.units.values()) <= 1


def _spots(value):
    """All values in a document, as container and key."""
    inside = (value.items() if isinstance(value, dict) else
              enumerate(value) if isinstance(value, list) else ())
    for key, inner in inside:
        yield value, key
        yield from _spots(inner)


@given(st.data())
@hypothesis.settings(max_examples=300)
def test_damaged_document_does_not_affect_a_request(data):
    tables = json.loads(host_summary.dumps(_offered(2), {}, _switched(2)))
    tables['islands'] = [[0, '0000:81:00.0']]
    for _time in range(data.draw(st.integers(1, 3))):
        where, key = data.draw(st.sampled_from(list(_spots(tables))))
        where[key] = data.draw(_plain | _rows)
    _arrange_and_weigh(host_summary.loads(json.dumps(tables), build.ROOT))


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(
    ('v', 'names', 'partitions', 'islands', 'faulty', 'cpuless_nodes'),
    _rows) | {
    'places': _rows | st.lists(st.tuples(_plain, _plain, _plain)),
    'cards': _rows | st.lists(st.tuples(
        _plain, _plain, st.lists(st.tuples(_plain, _plain, _plain))))}),
       st.booleans())
def test_any_json_gives_places_or_nothing(tables, is_packed):
    text = json.dumps(tables)
    loaded = host_summary.loads(_packed(text.encode()) if is_packed else text,
                                build.ROOT)
    assert loaded.places.keys() == loaded.units.keys()
    for place in loaded.places.values():
        assert place.numa_node is None or isinstance(place.numa_node, int)
        assert place.pcie_root is None or isinstance(place.pcie_root, str)
        assert place.pcie_switch is None or isinstance(place.pcie_switch, str)
        assert place.device and isinstance(place.device, str)
    for number in itertools.chain(*loaded.units.values()):
        assert isinstance(number, int) and abs(number) < 1 << 31
    for number in itertools.chain(*loaded.cpuless_nodes.items()):
        assert isinstance(number, int)
    for addresses in (*loaded.links.partitions, *loaded.links.islands,
                      loaded.links.faulty):
        assert all(address and isinstance(address, str)
                   for address in addresses)
    _arrange_and_weigh(loaded)


def test_deeply_nested_json_is_ignored():
    text = '{"places":' + '[' * 100_000
    assert host_summary.loads(text, build.ROOT) == host_summary.Summary()
    assert host_summary.loads(_packed(text.encode()),
                              build.ROOT) == host_summary.Summary()


def test_decompression_bomb_is_ignored():
    """It is a valid document with too much padding."""
    fine = host_summary.dumps(_offered(1)).encode()
    assert host_summary.loads(_packed(fine), build.ROOT).places
    for size in (host_summary.MAX_PLAIN, 100 << 20):
        bomb = _packed(fine + b' ' * size)
        assert host_summary.loads(bomb, build.ROOT) == host_summary.Summary()


def test_truncated_string_is_ignored():
    text = host_summary.dumps(_random(500))
    assert text.startswith('zlib:')
    assert host_summary.loads(text[:len(text) // 2 // 4 * 4 + 1],
                              build.ROOT) == host_summary.Summary()


_GOOD = {'places': [[1, 'pci0000:40', 's']], 'names': ['A'],
         'cards': [['0000:81:00.0', 0, [[0, 8, 3]]]]}


def _heard(**changes):
    return host_summary.loads(json.dumps({**_GOOD, **changes}), build.ROOT)


@pytest.mark.parametrize('row, place', [
    ([1, 'pci0000:40', 's'], (1, 'pci0000:40', 's')),
    ([1, 'pci0000:40', 's', 'later', {}], (1, 'pci0000:40', 's')),
    ([1, 'pci0000:40'], (1, 'pci0000:40', None)),
    ([1], (1, None, None)),
    ([None, 3, []], (None, None, None)),
])
def test_longer_and_shorter_places_are_read(row, place):
    assert [*_heard(places=[row]).places.values()] == [
        model.Place(*place, '0000:81:00.0')]


@pytest.mark.parametrize('version', [2, 3, 99, None, 'x', {}])
def test_additions_of_a_later_version_are_ignored(version):
    assert _heard(
        v=version, later=[], cards=[
            ['0000:81:00.0', 0, [[0, 8, 3, 'later']], 'later']]) == _heard()
    assert _heard().units


@pytest.mark.parametrize('card', [
    [], None, {}, 'card', ['0000:82:00.0'], ['0000:82:00.0', 0],
    [7, 0, [[0, 1, 1]]], ['', 0, [[0, 1, 1]]],
    ['0000:82:00.0', 9, [[0, 1, 1]]], ['0000:82:00.0', -1, [[0, 1, 1]]],
    ['0000:82:00.0', None, [[0, 1, 1]]],
    ['0000:82:00.0', 0, [[9, 1, 1], [0, '1', 1], [0], None, ['A', 1, 1],
                         [0, 1, 10 ** 400], [0, -10 ** 400, 1]]]])
def test_malformed_card_is_left_out(card):
    loaded = _heard(cards=[card, *_GOOD['cards']],
                    partitions=[[1], [0, 1], [1, 7], [], None, [[1]], [None],
                                ['', 1]])
    assert loaded.units == _heard().units
    assert loaded.places == _heard().places
    # Other cards keep their numbers, and no set gets smaller.
    partitions = {frozenset({'0000:81:00.0'})}
    if card and isinstance(card, list) and card[0] not in (7, ''):
        partitions.add(frozenset({'0000:81:00.0', card[0]}))
    assert set(loaded.links.partitions) == partitions


def test_unchanged_string_is_not_parsed_again():
    """Also for many large hosts."""
    text = host_summary.dumps(_random(100))
    roots = [str(uuid.UUID(int=number)) for number in range(600)]
    read = [host_summary.loads(text, root) for root in roots]
    assert all(host_summary.loads(text, root) is before
               for root, before in zip(roots, read, strict=True))


def test_only_the_last_summary_of_a_host_is_cached():
    texts = [host_summary.dumps(_offered(count)) for count in (2, 3, 2)]
    kept = [weakref.ref(host_summary.loads(text, build.ROOT))
            for text in texts]
    gc.collect()
    assert [read() is not None for read in kept] == [False, False, True]


def test_cache_of_all_hosts_is_limited():
    text = host_summary.dumps(_offered(2))
    remembered = host_summary._Remembered(4 * len(text) + 4 * 256 * 2)
    roots = [str(uuid.UUID(int=number)) for number in range(5)]
    read = [remembered.read(text, root) for root in roots]
    assert remembered.read(text, roots[1]) is read[1]
    assert remembered.read(text, roots[0]) is not read[0]
    # It has replaced the least recently used one.
    assert remembered.read(text, roots[1]) is read[1]
    assert remembered.read(text, roots[2]) is not read[2]


@pytest.mark.parametrize('is_packed', [True, False])
def test_too_long_text_is_ignored(is_packed):
    tables = {**_GOOD, 'partitions': []}
    chance = random.Random(1)

    def text():
        plain = json.dumps(tables)
        return _packed(plain.encode()) if is_packed else plain

    while len(text()) <= host_summary.MAX_BYTES:
        assert host_summary.loads(text(), build.ROOT).places
        tables['more'] = tables.get('more', '') + chance.randbytes(
            2048).hex()
    assert host_summary.loads(text(), build.ROOT) == host_summary.Summary()
