# SPDX-License-Identifier: Apache-2.0
"""Tests of the check that a server's devices match its allocations."""

import pytest

from nova_accel.core import hostdev
from nova_accel.core import naming
from nova_accel.core.assignment import verify
from nova_accel.core.placement import inventory
from nova_accel.core.request import flavor_request
from tests.unit import build

_TWO = {'resource_class': 'CUSTOM_X'}


def _host(together):
    """Two functions of one IOMMU group, or two VFs."""
    if together:
        return build.host([build.function(
            f'0000:81:00.{number}', '10de:20b0', iommu_group='one')
            for number in range(2)], _TWO)
    return build.host(build.card('0000:85:00.0', 2), {
        'product_id': '37c9', **_TWO})


def _keeps(host, held, amount, exactly, is_known=True):
    [item] = build.inventory(host).offered
    request = flavor_request.parse({'resources_ACCEL0:CUSTOM_X': str(amount)})
    addresses = [address for unit in item.region.units for address in unit]
    devices = tuple(
        hostdev.Hostdev(address, naming.alias('ACCEL0', item.uuid, number))
        for number, address in enumerate(addresses[:held]))
    return verify.matches_allocations(
        devices, request,
        {item.uuid: {naming.unit_class('CUSTOM_X'): amount}}
        if is_known else {},
        inventory.NodeInventory(host, inventory.Node(
            build.ROOT, 'host1', {item.uuid: 'x'})), exactly)


@pytest.mark.parametrize('together, held, amount, exactly, keeps', [
    (True, 2, 1, True, True),
    (True, 2, 2, True, False),
    # After a resize to more, or to fewer.
    (False, 2, 2, True, True),
    (False, 2, 1, True, False),
    (False, 1, 2, False, False),
    # They were one unit before, and the server keeps what it has.
    (False, 2, 1, False, True),
    # They are one unit now.
    (True, 2, 2, False, True),
])
def test_devices_are_kept_if_they_match_the_allocations(
        together, held, amount, exactly, keeps):
    assert _keeps(_host(together), held, amount, exactly) is keeps


@pytest.mark.parametrize('amounts, keeps', [
    ((1, 1), True), ((1, 0), False), ((0, 1), False)])
def test_device_of_an_old_class_is_kept(amounts, keeps):
    """The flavor names the new class only."""
    cards = '0000:81:00.0', '0000:82:00.0'
    here = build.inventory(build.host(map(build.function, cards), {
        'product_id': '2330', 'resource_class': 'CUSTOM_NEW'}))
    devices = tuple(hostdev.Hostdev(
        item.device.address, naming.alias(f'ACCEL{number}', item.uuid, 0))
        for number, item in enumerate(here.offered))
    request = flavor_request.parse({
        f'resources_ACCEL{number}:CUSTOM_NEW': '1' for number in range(2)})
    allocated = {item.uuid: {naming.unit_class(name): amount}
                 for item, name, amount in zip(
                     here.offered, ('CUSTOM_OLD', 'CUSTOM_NEW'), amounts,
                     strict=True)}
    assert verify.matches_allocations(
        devices, request, allocated, inventory.NodeInventory(
            here.host, inventory.Node(build.ROOT, 'host1', dict.fromkeys(
                here.by_uuid, 'x'))), False) is keeps


@pytest.mark.parametrize('held, amount, exactly, keeps', [
    (2, 2, True, True),
    # While a resize is reverted, it has the devices of the other flavor.
    (2, 1, True, False),
    (1, 2, True, False),
    (2, 1, False, True),
])
def test_devices_are_kept_if_they_match_the_flavor_without_placement(
        held, amount, exactly, keeps):
    assert _keeps(_host(False), held, amount, exactly, False) is keeps
