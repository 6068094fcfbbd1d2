# SPDX-License-Identifier: Apache-2.0
"""Matching of functions, compared with Nova's ``[pci] device_spec``."""

import json

from hypothesis import assume
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from nova_accel.core import model
from nova_accel.host import reader

devspec = pytest.importorskip('nova.pci.devspec')
exception = pytest.importorskip('nova.exception')
utils = pytest.importorskip('nova.pci.utils')

_IDS = st.sampled_from(['10de', '8086', '20b0', '0001'])

# There are few values, so that patterns often match addresses.
_ADDRESSES = st.builds(model.PciAddress, st.sampled_from([0, 1, 0xffff]),
                       st.sampled_from([0, 8, 0x81]),
                       st.sampled_from([0, 1, 0x1f]), st.sampled_from([0, 7]))
_FUNCTIONS = st.builds(
    model.Function, _ADDRESSES, _IDS, _IDS, st.just(0x030200),
    physfn=st.none() | _ADDRESSES)


def _parts(*values):
    return st.sampled_from(['', '*', ' * ', *values])


_GLOBS = st.one_of(
    _ADDRESSES.map(str),
    st.builds('{}:{}:{}.{}'.format, _parts('0', '0000', '1', 'FFFF'),
              _parts('81', '8', '08'), _parts('0', '00', '1f', '1F'),
              _parts('0', '7')),
    st.builds('{}:{}'.format, _parts('81', '8'), _parts('00', '1f')),
    st.builds('{}.{}'.format, _parts('00', '1f'), _parts('0', '7')),
    st.sampled_from(['*', '*:*:*.*', ':', '::', ':::', '.', '.*', ':81:',
                     '1:2:3:4.0', 'x', '0000:81:zz.0', '0000:81:00.8',
                     '0000:100:00.0', '0000:81:20.0']))
_REGEXES = st.dictionaries(
    st.sampled_from(['domain', 'bus', 'slot', 'function']),
    st.sampled_from(['', '.*', '8', '[0-7]', '0', '1f', '8[01]', '.', '(',
                     '0000|ffff', '81$', '^0']))
_SPECS = st.fixed_dictionaries({}, optional={
    'vendor_id': st.sampled_from(['10de', '10DE', ' 8086', '*', '0x1', '1']),
    'product_id': st.sampled_from(['20b0', '*', '1']),
    'address': _GLOBS | _REGEXES})


def _novas(spec, function, cards):
    """Return whether Nova's entry matches, or None if Nova refuses it."""
    with pytest.MonkeyPatch.context() as patch:
        # Nova reads from sysfs whether an address is a card with VFs.
        patch.setattr(utils, 'is_physical_function',
                      lambda *parts: '{}:{}:{}.{}'.format(*parts) in cards)
        try:
            theirs = devspec.PciDeviceSpec(dict(spec))
        except exception.NovaException:
            return None
    return theirs.match({
        'vendor_id': function.vendor_id, 'product_id': function.product_id,
        'address': str(function.address),
        'parent_addr': function.physfn and str(function.physfn)})


def _ours(spec, function):
    entries, problems = reader.parse([json.dumps(spec)])
    assert len(entries) + len(problems) == 1
    # Nova accepts an entry for all devices.
    assume(not any('names no device' in error.reason for error in problems))
    return entries[0].matches(function) if entries else None


@settings(max_examples=2000, deadline=None, derandomize=True, database=None)
@given(_SPECS, _FUNCTIONS)
def test_entry_matches_the_same_functions_as_in_nova(spec, function):
    cards = {str(function.physfn)}
    assert _ours(spec, function) == _novas(spec, function, cards)


@settings(max_examples=500, deadline=None, derandomize=True, database=None)
@given(_FUNCTIONS)
def test_function_matches_its_own_address_and_ids(function):
    spec = {'vendor_id': function.vendor_id,
            'product_id': function.product_id,
            'address': str(function.address)}
    assert _ours(spec, function) is _novas(spec, function, ()) is True


def test_regex_object_of_a_whole_address_matches_the_cards_vfs():
    card = model.PciAddress(0, 0x81, 0, 0)
    virtual = model.Function(model.PciAddress(0, 0x81, 0, 4), '10de', '20b0',
                             0x030200, physfn=card)
    spec = {'address': {'domain': '0000', 'bus': '81', 'slot': '00',
                        'function': '0'}}
    assert _ours(spec, virtual) == _novas(spec, virtual, {str(card)})
