# SPDX-License-Identifier: Apache-2.0
"""The option ``cleaner``."""

import json

import pytest

from nova_accel.core import model
from nova_accel.core.device_spec import cleaner
from nova_accel.core.device_spec import policy
from tests.unit import build

_GOOD = {'name': 'wipe', 'clean': ['/bin/wipe', '{address}'],
         'verify': ['/bin/check', '{address}', '--region={region}']}
_ENTRY = {'vendor_id': '10de', 'clean': 'wipe'}


def _policy(**fields):
    return policy.Policy(cleaners=cleaner.parse_all(
        [json.dumps(_GOOD | fields)])[0])


def test_cleaner():
    text = json.dumps(_GOOD | {'driver': 'nvme', 'timeout': 5})
    assert cleaner.parse(text) == cleaner.Cleaner(
        'wipe', ('/bin/wipe', '{address}'),
        ('/bin/check', '{address}', '--region={region}'), 5, 'nvme', text)


@pytest.mark.parametrize('text, says', [
    ('{', 'is not JSON'), ('[' * 100000, 'is not JSON'),
    ('[]', 'is not a JSON object'),
    (json.dumps({**_GOOD, 'shell': True}), "the key 'shell'"),
    *((json.dumps(_GOOD | fields), says) for fields, says in (
        ({'name': 'a b'}, 'name is not a name'),
        ({'name': None}, 'name is not a name'),
        ({'clean': []}, 'clean is not a list of words'),
        ({'clean': 'rm'}, 'clean is not a list of words'),
        ({'clean': ['rm']}, 'the absolute path'),
        ({'verify': ['/bin/true', '{bitstream}']}, 'has {bitstream}'),
        ({'verify': None}, 'verify is not a list of words'),
        ({'timeout': 0}, 'not a number of seconds'),
        ({'timeout': True}, 'not a number of seconds'),
        ({'timeout': 10 ** 9}, 'not a number of seconds'),
        ({'driver': '../x y'}, 'driver is not a name')))])
def test_unusable_cleaner(text, says):
    found, [problem] = cleaner.parse_all([text])
    assert found == {}
    assert says in str(problem)
    assert str(problem).startswith('[nova_accel] cleaner #1: ')


def test_second_cleaner_of_a_name_is_left_out():
    found, [problem] = cleaner.parse_all([json.dumps(_GOOD)] * 2)
    assert (list(found), problem.reason) == (
        ['wipe'], "is a second one named 'wipe'")


def test_device_with_a_cleaner():
    functions = [build.function('0000:81:00.0', class_code=0x010802)]
    host = build.offer(functions, build.entries(_ENTRY), policy=_policy())
    [region] = host.devices[0].regions
    assert (region.cleaner, region.tracks_dirt) == ('wipe', True)


def test_each_vf_of_a_disk_has_a_cleaner():
    functions = build.card('0000:85:00.0', 2)
    host = build.offer(functions, build.entries(
        {'product_id': '37c9', 'clean': 'wipe'}), policy=_policy())
    assert host.devices[0].regions[0].size == 2


@pytest.mark.parametrize('policy, entry, says', [
    (policy.DEFAULT, {}, 'which this host does not have'),
    (_policy(name='other'), {}, 'which this host does not have'),
    (_policy(), {'mdev_type': 'nvidia-1'}, 'nothing is left of a mediated')])
def test_refused_device(policy, entry, says):
    host = build.offer([build.function('0000:81:00.0', mdev_types=(
        model.MdevType('nvidia-1', 2),) if entry else ())],
        build.entries(_ENTRY | entry), policy=policy)
    assert host.devices == ()
    assert says in ' '.join(build.refusals(host).values())


@pytest.mark.parametrize('name', ['', 'a b', 1, ['x'], 'x' * 65])
def test_entry_with_an_invalid_name(name):
    with pytest.raises(Exception, match='not the name of a cleaner'):
        build.entries({**_ENTRY, 'clean': name})


@pytest.mark.parametrize('cleaned, unit', [
    # A GPU with its audio; two GPUs of one board; two functions of a NIC.
    ('81:00.0', {'81:00.0': 0x30200, '81:00.1': 0x40300}),
    ('81:00.0 82:00.0', {'81:00.0': 0x30200, '81:00.1': 0x40300,
                         '82:00.0': 0x30200, '82:00.1': 0x40300}),
    ('81:00.0 81:00.1', {'81:00.0': 0x20000, '81:00.1': 0x20000}),
    # Disks behind a switch without ACS; a disk that is a part of a NIC.
    ('82:00.0 81:00.0', {'82:00.0': 0x10802, '81:00.0': 0x10802}),
    ('81:00.0 81:00.2', {'81:00.0': 0x20000, '81:00.1': 0x88000,
                         '81:00.2': 0x10802})])
def test_each_device_of_a_unit_is_cleaned(cleaned, unit):
    found = cleaner.devices(build.function(f'0000:{at}', class_code=code)
                            for at, code in unit.items())
    assert {str(function.address) for function in found} == {
        f'0000:{at}' for at in cleaned.split()}
