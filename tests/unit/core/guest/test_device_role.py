# SPDX-License-Identifier: Apache-2.0
import dataclasses

import pytest

from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.guest import device_role
from nova_accel.core.guest import guest_buses
from nova_accel.core.placement import inventory
from tests.unit import build

_ROOT = '9a3c5b1e-0000-4000-8000-000000000001'
_CARDS = [f'0000:8{number}:00.0' for number in range(4)]


def _here(**facts):
    host = build.host([build.function(
        card, '10de:2330', iommu_group=card, location=model.Location(
            1, 'pci0000:80', switch=switch)) for card, switch in zip(
                _CARDS, ('a', 'b', 'a', None), strict=True)],
        {'product_id': '2330', 'resource_class': 'CUSTOM_GPU'})
    return inventory.NodeInventory(dataclasses.replace(host, **facts),
                                   inventory.Node(_ROOT, 'host'))


def _roles(here, cards=_CARDS, group='ACCEL0', **names):
    return device_role.roles(tuple(hostdev.Hostdev(
        model.PciAddress.parse(card), naming.alias(
            group, naming.provider_uuid(_ROOT, card), 0),
        guest_address=model.PciAddress(0, 0, number, 0))
        for number, card in enumerate(cards)),
        guest_buses.GuestBuses([]), here, names)


def test_role():
    [role] = _roles(_here(), _CARDS[:1], ACCEL0='a')
    assert (role.group, role.resource_class, role.provider, role.numa_node,
            role.position.path, role.function.ids) == (
        'a', 'CUSTOM_GPU', naming.provider_uuid(_ROOT, _CARDS[0]), 1,
        '00/00.0', '10de:2330')


@pytest.mark.parametrize('group, name', [('ACCEL0', 'ACCEL0'), ('', '')])
def test_group_without_a_name(group, name):
    [role] = _roles(_here(), _CARDS[:1], group)
    assert role.group == name


def test_switches_are_numbered_among_the_devices_of_the_guest():
    assert [role.switch for role in _roles(_here())] == [0, 1, 0, None]
    assert [role.switch for role in _roles(_here(), _CARDS[1:])] == [0, 1,
                                                                     None]


@pytest.mark.parametrize('links, cards, domains', [
    (model.Links(), 4, [None] * 4),
    (model.Links(islands=(frozenset(_CARDS),)), 3, [0, 0, 0]),
    (model.Links(islands=(frozenset(_CARDS),)), 1, [None]),
    # A partition has links only as a whole.
    (model.Links((frozenset(_CARDS),)), 3, [None] * 3),
    (model.Links((frozenset(_CARDS), frozenset(_CARDS[:2]),
                  frozenset(_CARDS[2:]))), 4, [0] * 4),
    (model.Links((frozenset(_CARDS), frozenset(_CARDS[:2]))), 3,
     [0, 0, None]),
    (model.Links(islands=(frozenset(_CARDS[2:]), frozenset(_CARDS[:2]))), 4,
     [1, 1, 0, 0])])
def test_link_domains(links, cards, domains):
    assert [role.link_domain for role in _roles(
        _here(links=links), _CARDS[:cards])] == domains


def test_device_that_is_not_offered_any_more():
    here = _here(devices=())
    [role] = _roles(here, _CARDS[:1])
    assert (role.resource_class, role.numa_node, role.switch) == ('', 1, 0)
    [role] = _roles(_here(devices=(), functions=()), _CARDS[:1])
    assert (role.numa_node, role.function) == (None, None)


@pytest.mark.parametrize('location, node', [
    (model.Location(0, cpuless_node=5), 5), (model.Location(), None)])
def test_numa_node(location, node):
    here = _here()
    functions = [dataclasses.replace(function, location=location)
                 for function in here.host.functions]
    [role] = _roles(_here(functions=functions), _CARDS[:1])
    assert role.numa_node == node
