# SPDX-License-Identifier: Apache-2.0
"""Hostdevs: one for each function of a Grant."""

from nova_accel.core import hostdev
from nova_accel.core import naming
from nova_accel.core.assignment import assigned_units
from nova_accel.core.placement import inventory
from tests.unit import build


def _grants(item, *groups):
    return [assigned_units.Grant(group, item, unit)
            for group, unit in zip(groups, item.region.units, strict=True)]


def test_hostdev_of_a_grant_names_group_and_provider():
    gpu = build.offered(build.region())
    [planned] = assigned_units.to_hostdevs(_grants(gpu, 'ACCEL0'))
    assert planned == hostdev.Hostdev(
        build.address('0000:81:00.0'), f'ua-accel-ACCEL0-{gpu.uuid}-0')


def test_each_function_of_a_unit_is_a_hostdev():
    pair = build.offered(build.region(size=2))
    planned = assigned_units.to_hostdevs(_grants(pair, 'ACCEL0'))
    assert [str(device.address) for device in planned] == [
        '0000:81:00.0', '0000:81:00.1']


def test_aliases_are_unique_and_can_be_parsed():
    pool = build.offered(build.region(count=3, size=2))
    other = build.offered(build.region(count=2, bus=0x82))
    planned = assigned_units.to_hostdevs([
        *_grants(pool, 'ACCEL0', 'ACCEL0', 'ACCEL1'),
        *_grants(other, 'ACCEL0', '')])
    assert len({device.alias for device in planned}) == len(planned) == 8
    assert [naming.parse_alias(device.alias) for device in planned] == [
        *[('ACCEL0', pool.uuid)] * 4, *[('ACCEL1', pool.uuid)] * 2,
        ('ACCEL0', other.uuid), ('flavor', other.uuid)]


def test_alias_of_a_function_has_its_ids():
    host = build.host(build.card('0000:81:00.0', 2), {
        'vendor_id': '8086', 'product_id': '37c9'})
    [device] = host.devices
    pool = inventory.Offered(build.ROOT, 'x', device, device.regions[0])
    planned = assigned_units.to_hostdevs(_grants(pool, 'ACCEL0', 'ACCEL0'))
    assert [device.alias for device in planned] == [
        f'ua-accel-ACCEL0-{build.ROOT}-{number}-808637c9'
        for number in range(2)]
    assert [device.ids for device in planned] == ['8086:37c9'] * 2


def test_managed_is_taken_from_the_region():
    for managed in (True, False):
        item = build.offered(build.region(managed=managed))
        [device] = assigned_units.to_hostdevs(_grants(item, 'ACCEL0'))
        assert device.managed is managed


def test_no_grants_give_no_hostdevs():
    assert assigned_units.to_hostdevs([]) == ()
