# SPDX-License-Identifier: Apache-2.0
"""Regions that a valid or an invalid file declares."""

import json
import os

from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from nova_accel.host import reader
from tests.unit import build

_FILE = build.DATA / 'kinds' / 'declared.json'


def _host(path, **more):
    entries = build.entries({'kind': 'declared', 'regions_file': str(path),
                             **more})
    return reader.read(build.recorded('l1'), entries)


def _declare(tmp_path, *regions):
    path = tmp_path / 'regions.json'
    path.write_text(json.dumps({'regions': regions}))
    return path


def test_regions_are_those_of_the_file():
    host = _host(_FILE)
    found = {region.variant: region for device in host.devices
             for region in device.regions}
    assert {name: (region.resource_class, region.total, len(region.units))
            for name, region in found.items()} == {
        'left': ('CUSTOM_GPU_LEFT', 1, 1),
        'vfs': ('CUSTOM_PCI_8086_37C9', 1, 2),
        'pair': ('CUSTOM_PAIR', 1, 1)}
    assert found['left'].traits == {'CUSTOM_LEFT'}
    assert list(map(str, found['pair'].units[0])) == [
        '0000:45:00.0', '0000:86:00.0']


def test_function_in_no_region_is_refused():
    assert 'lists it in no region' in build.refusals(_host(_FILE))[
        '0000:81:00.0']


def test_function_in_two_regions_is_refused(tmp_path):
    path = _declare(tmp_path, *(
        {'name': name, 'functions': ['0000:84:00.0']} for name in 'ab'))
    host = _host(path, address='0000:84:00.0')
    assert not host.devices
    assert 'several regions: a, b' in build.refusals(host)['0000:84:00.0']


def test_addresses_are_normalised(tmp_path):
    path = _declare(tmp_path, {'name': 'a', 'functions': ['0000:0A:00.0']})
    functions = [build.function('0000:0a:00.0')]
    entry = {'kind': 'declared', 'regions_file': str(path)}
    host = build.host(functions, {**entry, 'resource_class': 'npu'})
    assert build.units(host) == {'CUSTOM_NPU_a': ['0000:0a:00.0']}
    _declare(tmp_path, *({'name': name, 'functions': [f'0000:0{bus}:00.0']}
                         for name, bus in (('a', 'a'), ('b', 'A'))))
    assert 'several regions: a, b' in build.refusals(
        build.host(functions, entry))['0000:0a:00.0']
    _declare(tmp_path, {'name': 'a', 'functions': ['0000:0a:00.0',
                                                   '0000:0A:00.0']})
    assert 'has a function twice' in build.refusals(
        build.host(functions, entry))['0000:0a:00.0']
    _declare(tmp_path, {'name': 'a', 'functions': ['0000:0A:00.0', '0A:00']})
    assert 'not a PCI address' in build.refusals(
        build.host(functions, entry))['0000:0a:00.0']


def test_broken_region_is_not_offered(tmp_path):
    path = _declare(tmp_path, {'name': 'a', 'functions': ['0000:84:00.0'],
                               'broken': 'its fan'})
    host = _host(path, address='0000:84:00.0')
    assert not host.devices
    assert "broken: 'its fan'" in build.refusals(host)['0000:84:00.0']


def test_limit_written_as_a_float_is_an_integer(tmp_path):
    path = _declare(tmp_path, {'name': 'a', 'functions': ['0000:84:00.0'],
                               'limit': 1.0})
    [device] = _host(path, address='0000:84:00.0').devices
    assert [repr(region.total) for region in device.regions] == ['1']


def test_group_with_a_missing_function_is_refused(tmp_path):
    path = _declare(tmp_path, {
        'name': 'a', 'functions': ['0000:84:00.0', '0000:99:00.0'],
        'together': True})
    host = _host(path, address='0000:84:00.0')
    assert not host.devices
    assert 'groups it with functions that this host does not have' in (
        build.refusals(host)['0000:84:00.0'])


def test_region_that_splits_an_iommu_group_is_refused(tmp_path):
    functions = [build.function('0000:81:00.0', iommu_group='7'),
                 build.function('0000:81:00.1', iommu_group='7'),
                 build.function('0000:82:00.0')]
    path = _declare(tmp_path, {'name': 'a', 'together': True, 'functions': [
        '0000:82:00.0', '0000:81:00.0']})
    host = build.host(functions, {'kind': 'declared',
                                  'regions_file': str(path)})
    assert not host.devices
    assert 'IOMMU group 7 would be split' in build.refusals(host)[
        '0000:82:00.0']


def test_region_with_functions_outside_the_entry_is_refused(tmp_path):
    path = _declare(tmp_path, {'name': 'a', 'together': True, 'functions': [
        '0000:84:00.0', '0000:86:00.0']})
    host = _host(path, address='0000:84:00.0')
    assert not host.devices
    assert 'does not name' in build.refusals(host)['0000:84:00.0']


@pytest.mark.parametrize('value', ['', 'regions.json', 3, '/a\0b'])
def test_invalid_path_is_reported(value):
    _entries, [error] = reader.parse([json.dumps(
        {'kind': 'declared', 'regions_file': value})])
    assert 'regions_file' in str(error)


def test_missing_file_is_reported(tmp_path):
    host = _host(tmp_path / 'x.json', address='0000:84:00.0')
    assert 'cannot be used' in build.refusals(host)['0000:84:00.0']


def test_pipe_is_reported(tmp_path):
    os.mkfifo(tmp_path / 'pipe')
    host = _host(tmp_path / 'pipe', address='0000:84:00.0')
    assert 'is not a file' in build.refusals(host)['0000:84:00.0']


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(['name', 'functions', 'regions', 'traits', 'limit',
                         'together', 'resource_class', 'broken']) | st.text(),
        inner, max_size=5), max_leaves=12)
_REGION = st.fixed_dictionaries(
    {'name': st.text(max_size=3), 'functions': st.lists(st.sampled_from([
        '0000:84:00.0', '0000:86:00.0', '0000:99:00.0', 'x']), max_size=3)},
    optional={'resource_class': st.text(max_size=300),
              'traits': st.lists(st.text(max_size=300), max_size=2),
              'together': st.booleans(), 'limit': st.integers(0, 3),
              'broken': st.text(max_size=5)})


@settings(max_examples=200, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=50) | (_JSON | st.fixed_dictionaries(
    {'regions': st.lists(_REGION, max_size=3)})).map(
        lambda value: json.dumps(value).encode()))
def test_any_file_is_used_or_refused(tmp_path, content):
    path = tmp_path / 'regions.json'
    path.write_bytes(content)
    host = _host(path, address='0000:84:00.0')
    reason = build.refusals(host).get('0000:84:00.0', '')
    assert bool(host.devices) != bool(reason)
    assert 'failed' not in reason.split(':')[0]
    assert 'its kind' not in reason
    assert '\n' not in reason
