# SPDX-License-Identifier: Apache-2.0
"""``device_spec`` entries: what they match, and errors in them."""

import json

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_accel.core.device_spec import spec_entry
from nova_accel.host import reader
from tests.unit import build

_KEYS = ('vendor_id', 'product_id', 'address', 'resource_class', 'traits',
         'managed', 'kind')
_GPU = build.function('0000:81:00.0', '10de:2330')


def _problem(text):
    """The error of a text with one bad entry."""
    entries, problems = reader.parse([text])
    assert not entries
    assert len(problems) == 1
    message = str(problems[0])
    assert message.startswith('[nova_accel] device_spec #1: ')
    assert '\n' not in message
    assert len(message) < 400
    return message


@pytest.mark.parametrize('keys, matches', [
    ({'vendor_id': '10de'}, True),
    ({'vendor_id': '10DE'}, True),
    ({'vendor_id': ' 10de '}, True),
    ({'vendor_id': '0x10de'}, True),
    ({'vendor_id': '*', 'product_id': '2330'}, True),
    ({'vendor_id': '8086'}, False),
    ({'vendor_id': '0'}, False),
    ({'product_id': '2330'}, True),
    ({'vendor_id': '10de', 'product_id': '2331'}, False),
    ({'address': '0000:81:00.0'}, True),
    ({'address': '0:81:0.0'}, True),
    ({'address': '*:81:*.*'}, True),
    ({'address': '81:00.0'}, True),
    ({'address': ':00.'}, True),
    ({'address': '.0'}, True),
    ({'address': '.1'}, False),
    ({'address': '0001:81:00.0'}, False),
    ({'address': '8:00.0'}, False),
    ({'address': {'bus': '8[0-3]'}}, True),
    ({'address': {'bus': '8'}}, True),
    ({'address': {'bus': '1'}}, False),
    ({'address': {'domain': '.*', 'bus': '81', 'slot': '00',
                  'function': '[0-2]'}}, True),
    ({'address': {'function': '[1-7]'}}, False),
    ({'address': '0000:81:00.0', 'vendor_id': '8086'}, False),
])
def test_an_entry_matches_by_ids_and_address(keys, matches):
    [parsed] = build.entries(keys)
    assert parsed.matches(_GPU) is matches


@pytest.mark.parametrize('keys, matches', [
    ({'address': '0000:85:00.0'}, True),
    ({'address': '0000:85:00.0', 'product_id': '37c9'}, True),
    ({'address': '0000:85:00.0', 'product_id': '37c8'}, False),
    ({'address': '0000:85:00.*'}, False),
    ({'address': '0000:85:01.0'}, True),
    ({'address': '0000:86:00.0'}, False),
])
def test_full_address_of_a_card_matches_its_vfs(keys, matches):
    virtual = build.function('0000:85:01.0', '8086:37c9',
                             physfn='0000:85:00.0')
    [parsed] = build.entries(keys)
    assert parsed.matches(virtual) is matches


def test_a_domain_of_more_than_16_bits_can_be_named():
    vmd = build.function('10000:e1:00.0')
    [parsed] = build.entries({'address': '10000:e1:00.0'})
    assert parsed.matches(vmd)
    assert not parsed.matches(build.function('0000:e1:00.0'))


@pytest.mark.parametrize('keys, resource_class, traits, managed', [
    ({}, None, set(), None),
    ({'resource_class': 'PGPU'}, 'PGPU', set(), None),
    ({'resource_class': 'a100 80gb'}, 'CUSTOM_A100_80GB', set(), None),
    ({'traits': ['nvlink', 'CUSTOM_X']}, None,
     {'CUSTOM_NVLINK', 'CUSTOM_X'}, None),
    ({'traits': 'nvlink, x,'}, None, {'CUSTOM_NVLINK', 'CUSTOM_X'}, None),
    ({'traits': ''}, None, set(), None),
    ({'managed': 'no'}, None, set(), False),
    ({'managed': False}, None, set(), False),
    ({'managed': ' YES '}, None, set(), True),
    ({'managed': True}, None, set(), True),
    ({'managed': 0}, None, set(), False),
])
def test_class_traits_and_managed_are_read(
        keys, resource_class, traits, managed):
    [parsed] = build.entries(keys)
    assert parsed.resource_class == resource_class
    assert parsed.traits == traits
    assert parsed.managed is managed


@pytest.mark.parametrize('value, number', [
    (None, None), (1, 1), ('16', 16), ('all', 'all')])
def test_num_vfs_is_read(value, number):
    [parsed] = build.entries({'num_vfs': value})
    assert parsed.num_vfs == number


@pytest.mark.parametrize('value', [
    0, -1, '0', 'some', 1.5, True, [], {}, '', '1' * 5000])
def test_invalid_num_vfs_is_refused(value):
    assert 'num_vfs' in _problem(json.dumps({'num_vfs': value}))


@pytest.mark.parametrize('value', ['no', '', 1, True, [], {}])
def test_invalid_reset_is_refused(value):
    assert 'none of "required", "if_possible", "flr", "bus"' in _problem(
        json.dumps({'reset': value}))


def test_entry_with_num_vfs_names_the_vfs_of_its_cards():
    card, virtual = build.card('0000:85:00.0', 1)
    for keys, named in (({'product_id': '37c8', 'num_vfs': 1}, True),
                        ({'product_id': '37c8'}, False),
                        ({'product_id': '37c9', 'num_vfs': 1}, True),
                        ({'vendor_id': '10de', 'num_vfs': 1}, False)):
        [parsed] = build.entries(keys)
        assert parsed.names(virtual, card) is named


@pytest.mark.parametrize('text, says', [
    ('', 'is not JSON'),
    ('{', 'is not JSON'),
    ('vendor_id=10de', "'vendor_id=10de'"),
    ('\0\x01', 'is not JSON'),
    ('[' * 50_000, 'is not JSON'),
    ('"x' + 'y\n' * 5000, 'is not JSON'),
    ('[' + '{},' * 100_000 + '{}]', 'has more than 65536 characters'),
    ('"10de"', 'is not a JSON object'),
    ('[1]', 'is not a JSON object'),
    ('null', 'is not a JSON object'),
    ('{"vendor": "10de"}', "does not know the key 'vendor'; known keys: "
                           'address, clean, compare_firmware, '
                           'firmware_probe, gpu_instance, keeps_data,'),
    ('{"a\\nb": 1}', "does not know the key 'a\\nb'"),
    ('{"physical_network": "x"}', 'devices for Neutron ports belong in '
                                  '[pci] device_spec'),
    ('{"devname": "eth0"}', '[pci] device_spec'),
    ('{"kind": []}', 'kind [] is not installed; known kinds: '),
    ('{"kind": {"pci": 1}}', "kind {'pci': 1} is not installed"),
    ('{"vendor_id": 4318}', 'vendor_id 4318 is not a hexadecimal number'),
    ('{"vendor_id": "xyz"}', "vendor_id 'xyz' is not a hexadecimal number"),
    ('{"vendor_id": ""}', "vendor_id '' is not"),
    ('{"vendor_id": "10000"}', "vendor_id '10000' is more than ffff"),
    ('{"product_id": true}', 'product_id True is not'),
    ('{"product_id": ["2330"]}', 'product_id'),
    ('{"address": 1}', 'address 1 is neither a string nor an object'),
    ('{"address": "1:2:3:4.0"}', 'has more than domain:bus:slot.function'),
    ('{"address": "0000:zz:00.0"}', 'has a bus that is not hexadecimal'),
    ('{"address": "0000:81:20.0"}', 'has a slot of more than 1f'),
    ('{"address": "0000:81:00.8"}', 'has a function of more than 7'),
    ('{"address": "0000:100:00.0"}', 'has a bus of more than ff'),
    ('{"address": "100000000:0:0.0"}', 'has a domain of more than ffffffff'),
    ('{"address": {"bus": "("}}', 'address'),
    ('{"address": {"bus": 1}}', 'has a bus that is not a string'),
    ('{"address": {"port": "1"}}', "has 'port'; an object may have domain"),
    ('{"resource_class": ""}', "resource_class '' is not a name"),
    ('{"resource_class": 3}', 'resource_class 3 is not a name'),
    ('{"resource_class": "VCPU"}', 'is a class that Nova itself counts'),
    ('{"traits": {}}', 'traits {} is neither a list'),
    ('{"traits": [1]}', 'traits [1] is neither a list'),
    ('{"traits": "nova accel strict"}', 'has CUSTOM_NOVA_ACCEL_STRICT, which '
     'only nova_accel itself sets'),
    ('{"managed": "maybe"}', "managed 'maybe' is neither"),
    ('{"compare_firmware": 2}', 'compare_firmware 2 is neither'),
    ('{"firmware_probe": "/bin/x"}', 'is not the name of a firmware_probe'),
    ('{"firmware_probe": ["x"]}', 'is not the name of a firmware_probe'),
])
def test_bad_entry_gives_one_line(text, says):
    assert says in _problem(text)


@pytest.mark.parametrize('keys', [
    {}, {'resource_class': 'CUSTOM_GPU'}, {'num_vfs': 'all'}, {'kind': 'pci'},
    {'program': 'fpga_manager'}, {'mdev_type': 'nvidia-471'},
    {'vgpu_type': '558', 'max_instances': 4},
    {'vendor_id': '*', 'product_id': '*'}, {'vendor_id': None},
    {'address': ''}, {'address': '*'}, {'address': '*:*:*.*'},
    {'address': '::.'}, {'address': {}},
    {'address': {'domain': '.*', 'bus': '[0-9a-f]+', 'slot': '..',
                 'function': '[0-7]$'}},
])
def test_entry_that_names_no_device_is_refused(keys):
    assert 'names no device, and would match all devices of the host; add' in (
        _problem(json.dumps(keys)))


@pytest.mark.parametrize('keys', [
    {'address': '.0'}, {'address': {'domain': '0009'}},
    {'address': {'domain': '[0-9a-f]{1,3}$'}}, {'address': {'bus': '[^f]'}},
    {'parent': 'mtty', 'mdev_type': 'mtty-1'},
    # The file lists the devices.
    {'regions_file': '/etc/nova/regions.json'},
])
def test_entry_needs_one_key_that_names_devices(keys):
    entries, _problems = reader.parse([json.dumps(keys)])
    assert len(entries) == 1


@pytest.mark.parametrize('key', ['resource_class', 'traits'])
def test_a_name_that_is_too_long_is_refused(key):
    assert 'too long' in _problem(json.dumps({key: 'x' * 300}))


@pytest.mark.parametrize('pattern', [
    'a{99999999999999999999}', '(' * 5000 + ')' * 5000])
def test_a_regular_expression_that_cannot_be_compiled_is_refused(pattern):
    assert 'address' in _problem(json.dumps({'address': {'bus': pattern}}))


def test_bad_entry_does_not_affect_other_entries():
    entries, problems = reader.parse(
        ['{"vendor_id": "10de"}', 'x',
         '[{"vendor_id": "1002"}, {"vendor_id": "8086"}]'])
    assert [parsed.label for parsed in entries] == [
        '[nova_accel] device_spec #1', '[nova_accel] device_spec #3.1',
        '[nova_accel] device_spec #3.2']
    assert [problem.thing for problem in problems] == [
        '[nova_accel] device_spec #2']


def test_no_entries_are_no_problem():
    assert reader.parse([]) == ([], [])


@given(st.text() | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(
        st.sampled_from(_KEYS) | st.text(), inner),
).map(json.dumps))
def test_any_text_gives_entries_or_one_error_per_object(text):
    _entries, problems = reader.parse([text])
    # A list has one error per object.
    assert len({problem.thing for problem in problems}) == len(problems)
    assert not any('\n' in str(problem) for problem in problems)


def test_foreign_entries_match_devices():
    foreign = spec_entry.parse_foreign([
        '{"vendor_id": "10de", "physical_network": "x", "trusted": "true"}',
        '[{"address": "0000:82:00.0", "live_migratable": "yes"}]',
        '{"devname": "eth0"}', '{}', 'nonsense', '{"vendor_id": "zz"}',
        '[{"vendor_id": "zz"}, 1, {"vendor_id": "10de"}]',
    ], '[pci] device_spec')
    assert [claim.label for claim in foreign] == [
        f'[pci] device_spec #{number}' for number in (1, 2, 3, 4, 7)]
    assert [claim.matches(_GPU) for claim in foreign] == [
        True, False, False, True, True]


@pytest.mark.parametrize('keys, matches', [
    ({'address': {'bus': '81', 'port': 1}}, True),
    ({'address': {'bus': '82', 'port': 1}}, False),
    ({'address': {'port': 1}}, True),
    ({'vendor_id': ' * '}, True),
    ({'vendor_id': ' * ', 'product_id': '1'}, False),
    ({'address': 0}, True), ({'address': []}, True),
    ({'address': None}, True), ({'address': False}, True),
    ({'devname': ''}, True),
])
def test_foreign_entry_that_nova_accepts_is_a_claim(keys, matches):
    [claim] = spec_entry.parse_foreign([json.dumps(keys)], '[pci] device_spec')
    assert claim.matches(_GPU) is matches


@pytest.mark.parametrize('keys, claimed', [
    ({'devname': 'eth0'}, [True, True]),
    ({'devname': 'eth0v1'}, [False, True]),
    ({'devname': 'eth1'}, [False, False]),
    ({'devname': 'eth0', 'product_id': '37c9'}, [False, True]),
])
def test_the_name_of_a_cards_port_claims_its_virtual_functions(
        keys, claimed):
    card = [build.function('0000:85:00.0', '8086:37c8', netdevs=('eth0',)),
            build.function('0000:85:01.0', '8086:37c9', netdevs=(
                'eth0v1', 'eth0'), physfn='0000:85:00.0')]
    [claim] = spec_entry.parse_foreign([json.dumps(keys)], '[pci] device_spec')
    assert [claim.matches(function) for function in card] == claimed


def test_bad_object_does_not_affect_others_of_its_list():
    found, problems = spec_entry.parse_all([
        '[{"vendor_id": "10de"}, {"vendor_id": "zz"}, 1, '
        '{"vendor_id": "8086"}]', '{"vendor_id": "1002"}'], {})
    option = '[nova_accel] device_spec'
    assert [(one.label, one.vendor_id) for one in found] == [
        (f'{option} #1.1', '10de'), (f'{option} #1.4', '8086'),
        (f'{option} #2', '1002')]
    assert [problem.thing for problem in problems] == [
        f'{option} #1.2', f'{option} #1.3']
