# SPDX-License-Identifier: Apache-2.0
"""The properties of devices as traits, and drains."""

import dataclasses
import datetime

import pytest

from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.placement import device_traits
from nova_accel.core.placement import drain
from tests.unit import build

_DEVICE = model.Device(
    model.PciAddress.parse('0000:81:00.0'), '10de:2330',
    model.Location(1, 'pci0000:80', switch='0000:7f:00.0'),
    (build.region('CUSTOM_GPU'),))
_LINKS = model.Links(
    partitions=(frozenset({'0000:81:00.0', '0000:82:00.0'}),
                frozenset({'0000:83:00.0'})),
    islands=(frozenset({'0000:83:00.0'}), frozenset({'0000:81:00.0'})),
    faulty=frozenset({'0000:81:00.0'}))
_WHEN = datetime.datetime(2026, 11, 25, 20, 15, tzinfo=datetime.UTC)


def test_traits_have_ids_and_location_of_a_device():
    traits = device_traits.dumps(_DEVICE, _LINKS)
    assert traits == {
        'CUSTOM_NOVA_ACCEL_PCI_10DE_2330', 'CUSTOM_NOVA_ACCEL_NUMA_NODE_1',
        'CUSTOM_NOVA_ACCEL_PCIE_ROOT_PCI0000_80',
        'CUSTOM_NOVA_ACCEL_PCIE_SWITCH_0000_7F_00_0',
        'CUSTOM_NOVA_ACCEL_ISLAND_1', 'CUSTOM_NOVA_ACCEL_PARTITION_0_OF_2',
        'CUSTOM_NOVA_ACCEL_FAILED_LINKS'}
    assert all(map(naming.is_trait, traits))
    read = device_traits.loads({*traits, 'CUSTOM_NOVA_ACCEL', 'CUSTOM_X'})
    assert read == device_traits.Properties(
        '10de:2330', {'numa_node': '1', 'pcie_root': 'pci0000:80',
                      'pcie_switch': '0000:7f:00.0'},
        frozenset({1}), {0: 2}, True)


def test_device_without_a_numa_node_is_on_the_only_one_of_its_host():
    device = dataclasses.replace(_DEVICE, location=model.Location())
    assert device_traits.loads(device_traits.dumps(device, _LINKS, 0)
                               ).place == {'numa_node': '0'}
    assert not device_traits.loads(device_traits.dumps(device, _LINKS)).place


@pytest.mark.parametrize('traits', [
    [], ['CUSTOM_NOVA_ACCEL_PCI_10DE'], ['CUSTOM_NOVA_ACCEL_ISLAND_X'],
    ['CUSTOM_NOVA_ACCEL_DRAINED']])
def test_other_traits_are_no_properties_of_a_device(traits):
    assert device_traits.loads(traits) == device_traits.Properties()


@pytest.mark.parametrize('reason, kept', [
    ('Fan is loud (INC-4711)', 'fan is loud inc 4711'), ('', ''),
    ('***', ''), ('x' * 500, 'x' * drain.MAX_REASON)])
def test_drain_is_read_from_its_trait(reason, kept):
    trait = drain.Drain(_WHEN, reason).trait
    assert naming.is_trait(trait)
    assert drain.is_trait(trait)
    assert drain.loads(['CUSTOM_NOVA_ACCEL', trait]) == drain.Drain(
        _WHEN, kept)


def test_oldest_of_several_drains_counts():
    later = drain.Drain(_WHEN + datetime.timedelta(1), 'a')
    assert drain.loads([later.trait, drain.Drain(_WHEN, 'b').trait]
                       ).reason == 'b'


@pytest.mark.parametrize('trait', [
    'CUSTOM_NOVA_ACCEL_DRAINED', 'CUSTOM_NOVA_ACCEL_DRAIN_',
    'CUSTOM_NOVA_ACCEL_DRAIN_20269925T201500Z_X'])
def test_other_traits_are_no_drain(trait):
    assert not drain.is_trait(trait)
