# SPDX-License-Identifier: Apache-2.0
"""Definitions for Ceilometer and CloudKitty match nova_accel's data."""

import fnmatch
import fractions
import json
import pathlib
import re

from jsonpath_rw_ext import parser
import pytest
import yaml

from nova_accel.cmd import collector
from nova_accel.core.placement import listing

_ROOT = pathlib.Path(__file__).parents[2]
_ETC = _ROOT / 'etc' / 'nova_accel'
_SAMPLES = {path.stem: json.loads(path.read_text()) for path in (
    _ROOT / 'doc/source/reference/notification_samples').glob('*.json')}
_PARSER = parser.ExtentedJsonPathParser()


def _load(name):
    return yaml.safe_load((_ETC / name).read_text())


def _values(path, sample):
    """Return the values at a path, as ceilometer.declarative.Definition."""
    return [match.value for match in _PARSER.parse(path).find(sample)
            if match.value is not None]


_EVENTS = _load('ceilometer/event_definitions.yaml')
[_METER] = _load('ceilometer/meters.yaml')['metric']


@pytest.mark.parametrize('name', _SAMPLES)
def test_every_notification_is_one_event(name):
    assert len([definition for definition in _EVENTS
                if fnmatch.fnmatch(name, definition['event_type'])]) == 1


@pytest.mark.parametrize('definition, trait', [
    (definition, trait) for definition in _EVENTS
    for trait in definition['traits']])
def test_every_trait_is_in_a_notification(definition, trait):
    fields = definition['traits'][trait]
    assert fields.get('type', 'text') in ('text', 'int', 'float', 'datetime')
    found = [value for name, sample in _SAMPLES.items()
             if fnmatch.fnmatch(name, definition['event_type'])
             for value in _values(fields['fields'], sample)]
    assert found
    if fields.get('type') == 'int':
        assert {type(value) for value in found} == {int}
    else:
        assert {type(value) for value in found} == {str}


def test_meter_has_what_ceilometer_requires():
    """Source: ceilometer.meter.notifications.MeterDefinition."""
    assert {'name', 'event_type', 'type', 'unit', 'volume', 'resource_id'
            } <= _METER.keys()
    assert _METER['type'] in ('gauge', 'delta', 'cumulative')


@pytest.mark.parametrize('name', _SAMPLES)
def test_meter_counts_the_units_of_each_notification_of_a_device(name):
    is_meter = bool(re.match(_METER['event_type'], name))
    assert is_meter == name.startswith('accel_device')
    if is_meter:
        data = _SAMPLES[name]['payload']['nova_object.data']
        for path, field in (('volume', 'units_available'),
                            ('resource_id', 'uuid')):
            assert _values(_METER[path], _SAMPLES[name]) == [data[field]]
        for path in _METER['metadata'].values():
            assert _values(path, _SAMPLES[name])


def test_cloudkitty_rates_a_metric_that_is_exported():
    """Source: cloudkitty.collector: METRIC_BASE_SCHEMA, build_query."""
    [(name, metric)] = _load('cloudkitty/metrics.yml')['metrics'].items()
    [group] = _load('cloudkitty/prometheus-rules.yaml')['groups']
    [rule] = group['rules']
    assert rule['record'] == name
    assert group['interval'] == '1m'
    assert fractions.Fraction(metric['factor']) * 60 == 1
    labels = re.search(r'sum by \((.*?)\)', rule['expr'])[1].split(', ')
    assert metric['groupby'] == labels
    # "sum" over time and over series is the only one that counts minutes.
    assert metric['extra_args'] == {'aggregation_method': 'sum'}
    exported = {family.name: family for family in collector.Collector(
        collector.Reading(0, None, 0, collector.Node(
            listing.Host('u', 'host1', ()), {}, {}, {}), None)).collect()}
    source, label = re.search(
        r'label_replace\((\w+), "project_id", "\$1", "(\w+)"',
        rule['expr']).groups()
    assert {label, 'resource_class'} == set(exported[source]._labelnames)
