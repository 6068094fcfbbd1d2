# SPDX-License-Identifier: Apache-2.0
"""Firmware versions as traits of the compute node."""

import hypothesis
from hypothesis import strategies
import pytest

from nova_accel.core import naming
from nova_accel.core.placement import firmware
from tests.unit import build

_DISK, _SECOND = map(build.address, ('0000:82:00.0', '10000:82:00.1'))


def _version(text, function=_DISK, source='NVME', is_other=False):
    return firmware.Version(function, source, firmware.encode(text), _DISK,
                            is_other)


@pytest.mark.parametrize('version, trait', [
    (_version('GDC5302Q'), 'FIRMWARE_0000_82_00_0_NVME_GDC5302Q'),
    (_version('10.0.13', is_other=True),
     'OTHER_FIRMWARE_0000_82_00_0_NVME_10_0_13'),
    (_version('v1', _SECOND, firmware.of_probe('disk')),
     'FIRMWARE_10000_82_00_1_OF_0000_82_00_0_PROBE_DISK_V1__'
     '3BFC269594EF649228E9A74BAB00F042')])
def test_trait(version, trait):
    assert version.trait == f'CUSTOM_NOVA_ACCEL_{trait}'
    assert firmware.loads([version.trait, 'CUSTOM_NOVA_ACCEL_FIRMWARE_CHANGED',
                           'CUSTOM_X']) == {version}


_TEXTS = strategies.text(min_size=1, max_size=5000) | strategies.text(
    'aA1._-', min_size=1, max_size=6)


@hypothesis.given(_TEXTS, _TEXTS, strategies.booleans())
def test_different_texts_have_different_traits(one, other, is_other):
    versions = [_version(text, _SECOND, firmware.of_probe('x' * 32), is_other)
                for text in (one, other)]
    traits = {version.trait for version in versions}
    assert len(traits) == len({one, other})
    assert all(map(naming.is_trait, traits))
    assert firmware.loads(traits) == {*versions}


@pytest.mark.parametrize('text, shown', [
    ('10.0.13', '10.0.13'), ('113-D67301-063', '113 d67301 063 (69327ee3)'),
    ('ё', '(30fbc377)'), ('A..B', 'a b (c553d5fd)')])
def test_text_in_messages(text, shown):
    assert firmware.decode(firmware.encode(text)) == shown


def test_first_and_first_other_version_are_known():
    known = firmware.after((), [_version('1')])
    assert known == firmware.after(known, [_version('1')]) == {_version('1')}
    assert firmware.changes(known) == {}
    known = firmware.after(known, [_version('2'), _version('5', _SECOND)])
    for text in ('3', '1'):
        known = firmware.after(known, [_version(text)])
    assert known == {_version('1'), _version('2', is_other=True),
                     _version('5', _SECOND)}
    assert firmware.changes(known) == {_DISK: "nvme was '1', and is '2'"}
    assert firmware.describe(known) == [
        'nvme 1', 'nvme 2, not accepted', f'nvme 5 of {_SECOND}']


def test_sources_are_compared_apart():
    probe = firmware.of_probe('disk')
    known = firmware.after({_version('1')}, [
        _version('2', source=probe), _version('3')])
    known = firmware.after(known, [_version('4', source=probe)])
    assert firmware.changes(known) == {
        _DISK: "nvme was '1', and is '3'; probe disk was '2', and is '4'"}
