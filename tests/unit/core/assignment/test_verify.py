# SPDX-License-Identifier: Apache-2.0
"""Whether what a server has is what it was promised."""

import pytest

from nova_accel.core import hostdev
from nova_accel.core import naming
from nova_accel.core.assignment import verify
from nova_accel.core.placement import inventory
from nova_accel.core.request import flavor_request
from tests.unit import build

_TWO = {'resource_class': 'CUSTOM_X', 'vendor_id': '*'}


def _host(together):
    """Two functions that travel together, or two VFs."""
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
    # By a resize to more, or to fewer.
    (False, 2, 2, True, True),
    (False, 2, 1, True, False),
    (False, 1, 2, False, False),
    # They travelled together once, and it keeps what it has.
    (False, 2, 1, False, True),
    # Or do so now.
    (True, 2, 2, False, True),
])
def test_it_keeps_what_it_was_promised(together, held, amount, exactly,
                                       keeps):
    assert _keeps(_host(together), held, amount, exactly) is keeps


@pytest.mark.parametrize('held, amount, exactly, keeps', [
    (2, 2, True, True),
    # On its way back from a resize it has those of the other flavor.
    (2, 1, True, False),
    (1, 2, True, False),
    (2, 1, False, True),
])
def test_without_placement_it_keeps_what_its_flavor_asks_for(
        held, amount, exactly, keeps):
    assert _keeps(_host(False), held, amount, exactly, False) is keeps
