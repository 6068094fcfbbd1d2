# SPDX-License-Identifier: Apache-2.0
"""Ids and traits of FPGAs, and which bitstream fits which region."""

import uuid

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_accel.core import errors
from nova_accel.core import naming
from nova_accel.core.request import fpga

_IMAGE = 'a6a12670-7014-4cff-a563-cea949b57fb3'
_FUNCTION = 'd8424dc4a4a3c413f89e433683f9040b'
_REGION = '9926ab6d6c925a68aabca7d84c545738'

_ids = st.uuids().map(lambda value: value.hex)


@given(value=st.uuids(), upper=st.booleans(), hyphens=st.booleans())
def test_uuid_in_any_notation_is_the_same_id(value, upper, hyphens):
    text = str(value) if hyphens else value.hex
    assert fpga.read_id(text.upper() if upper else text) == value.hex


@given(text=st.text() | st.text('0123456789abcdef-', max_size=40))
def test_any_text_is_an_id_or_refused(text):
    try:
        found = fpga.read_id(text)
    except ValueError as error:
        assert '\n' not in str(error)
    else:
        assert found == uuid.UUID(text).hex


@pytest.mark.parametrize('text', [
    'd8424dc4-a4a3c413f89e433683f9040b', '{' + _IMAGE + '}',
    f'urn:uuid:{_IMAGE}', f'{_FUNCTION}\n', f'0x{_FUNCTION[2:]}', ''])
def test_malformed_uuid_is_refused(text):
    with pytest.raises(ValueError, match='is not a uuid'):
        fpga.read_id(text)


@given(vendor=st.sampled_from(['8086', '10ee', '1bd4', '1234']),
       product=st.integers(0, 0xffff).map('{:04x}'.format),
       functions=st.sets(_ids, max_size=3), regions=st.sets(_ids, max_size=3))
def test_every_trait_is_valid(vendor, product, functions, regions):
    found = fpga.traits(vendor, product, functions, regions)
    assert all(map(naming.is_trait, found))
    assert set(map(fpga.function_trait, functions)) <= found
    assert functions or not any(map(fpga.is_function_trait, found))


@pytest.mark.parametrize('vendor, product, traits', [
    ('8086', '09c4', {
        'CUSTOM_FPGA_INTEL', 'CUSTOM_FPGA_INTEL_PAC_ARRIA10',
        f'CUSTOM_FPGA_FUNCTION_ID_INTEL_{_FUNCTION.upper()}',
        f'CUSTOM_FPGA_REGION_INTEL_{_REGION.upper()}'}),
    ('8086', '0b30', {
        'CUSTOM_FPGA_INTEL',
        f'CUSTOM_FPGA_FUNCTION_ID_INTEL_{_FUNCTION.upper()}',
        f'CUSTOM_FPGA_REGION_INTEL_{_REGION.upper()}'}),
    ('10ee', '5000', {
        'CUSTOM_FPGA_XILINX', 'CUSTOM_FPGA_PRODUCT_ID_5000',
        f'CUSTOM_FPGA_FUNCTION_ID_XILINX_{_FUNCTION.upper()}',
        f'CUSTOM_FPGA_REGION_XILINX_{_REGION.upper()}'}),
    ('1bd4', '0a1b', {
        'CUSTOM_FPGA_INSPUR', 'CUSTOM_FPGA_PRODUCT_ID_0A1B',
        f'CUSTOM_FPGA_FUNCTION_ID_INSPUR_{_FUNCTION.upper()}',
        f'CUSTOM_FPGA_REGION_INSPUR_{_REGION.upper()}'}),
    ('1234', '0001', set()),
])
def test_traits_are_those_of_cyborg_where_it_has_some(vendor, product, traits):
    assert fpga.traits(vendor, product, {_FUNCTION}, {_REGION}) == traits | {
        f'CUSTOM_FPGA_FUNCTION_ID_{_FUNCTION.upper()}',
        f'CUSTOM_FPGA_REGION_ID_{_REGION.upper()}'}


@pytest.mark.parametrize('properties, function, region, vendor', [
    ({}, '', '', ''),
    ({'accel:function_id': _FUNCTION.upper()}, _FUNCTION, '', ''),
    ({'function_uuid': str(uuid.UUID(_FUNCTION)),
      'region_uuid': str(uuid.UUID(_REGION)), 'vendor': ' Intel '},
     _FUNCTION, _REGION, 'Intel'),
    ({'accel:region_type_id': _REGION, 'accel:function_id': ''},
     '', _REGION, ''),
    ({'accel:region_type_id': _REGION, 'region_uuid': _FUNCTION},
     '', _REGION, ''),
])
def test_image_properties_are_read(properties, function, region, vendor):
    assert fpga.from_image(_IMAGE, '/x', properties) == fpga.Bitstream(
        _IMAGE, '/x', function, region, vendor)


@given(value=st.text(min_size=1) | st.integers() | st.booleans())
def test_invalid_image_property_is_named(value):
    try:
        fpga.from_image(_IMAGE, '/x', {'accel:function_id': value})
    except errors.AssignmentError as error:
        assert str(error).startswith(f'bitstream {_IMAGE}: ')
        assert 'accel:function_id' in str(error)
        assert '\n' not in str(error)


@pytest.mark.parametrize('region, vendor, regions', [
    ('', '', {_REGION}), (_REGION, '', {_REGION}), (_REGION, '', set()),
    (_REGION, '', {_FUNCTION, _REGION}), ('', 'INTEL', {_REGION}),
    ('', '8086', {_REGION})])
def test_bitstream_fits_a_region_unless_known_otherwise(
        region, vendor, regions):
    fpga.Bitstream(_IMAGE, '/x', '', region, vendor).check_fits(
        '8086', regions)


@pytest.mark.parametrize('region, vendor, says', [
    (_FUNCTION, '', f'made for region {_FUNCTION}, but this region is '
     f'{_REGION}'),
    ('', 'Xilinx', "made for cards of 'Xilinx', but this card is of Intel")])
def test_bitstream_for_another_region_or_vendor_is_refused(
        region, vendor, says):
    with pytest.raises(errors.AssignmentError) as caught:
        fpga.Bitstream(_IMAGE, '/x', '', region, vendor).check_fits(
            '8086', {_REGION})
    assert says in str(caught.value)


def test_unknown_vendor_is_accepted():
    fpga.Bitstream(_IMAGE, '/x', vendor='Acme').check_fits('1234', ())
