# SPDX-License-Identifier: Apache-2.0
"""The option ``firmware_probe``."""

import json

import pytest

from nova_accel.core.device_spec import firmware_probe
from nova_accel.core.device_spec import policy
from tests.unit import build

_GOOD = {'name': 'nic', 'command': ['/sbin/x', 'pci/{address}']}
_ENTRY = {'vendor_id': '10de', 'firmware_probe': 'nic'}
_POLICY = policy.Policy(probes=firmware_probe.parse_all(
    [json.dumps(_GOOD)])[0])


def test_probe():
    found, problems = firmware_probe.parse_all(
        json.dumps({**_GOOD, **fields})
        for fields in ({}, {'name': 'b2', 'timeout': 5}))
    words = ('/sbin/x', 'pci/{address}')
    assert (found, problems) == ({
        'nic': firmware_probe.Probe('nic', words, 60),
        'b2': firmware_probe.Probe('b2', words, 5)}, [])


@pytest.mark.parametrize('text, says', [
    ('{', 'is not JSON'), ('"nic"', 'is not a JSON object'),
    *((json.dumps(_GOOD | fields), says) for fields, says in (
        ({'shell': True}, "the key 'shell'"),
        ({'name': 'Nic'}, 'name is not a name'),
        ({'name': 'a_b'}, 'name is not a name'),
        ({'name': None}, 'name is not a name'),
        ({'command': 'x'}, 'command is not a list of words'),
        ({'command': ['/x', '{region}']}, 'has {region}'),
        ({'timeout': 101}, 'timeout is not a number of seconds, 1 to 100')))])
def test_unusable_probe(text, says):
    found, [problem] = firmware_probe.parse_all([text])
    assert found == {}
    assert says in str(problem)
    assert str(problem).startswith('[nova_accel] firmware_probe #1: ')


@pytest.mark.parametrize('keys, probe', [
    ({}, 'nic'), ({'compare_firmware': 'no'}, None)])
def test_probe_of_a_region(keys, probe):
    host = build.offer([build.function('0000:81:00.0')],
                       build.entries({**_ENTRY, **keys}), policy=_POLICY)
    assert host.devices[0].regions[0].firmware_probe == probe


def test_device_with_an_unknown_probe_is_refused():
    host = build.host([build.function('0000:81:00.0')], _ENTRY)
    [reason] = build.refusals(host).values()
    assert "firmware_probe 'nic', which this host does not have" in reason
