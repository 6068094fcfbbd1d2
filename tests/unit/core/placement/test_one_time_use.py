# SPDX-License-Identifier: Apache-2.0
"""Disks, and devices for one server only."""

import pytest

from nova_accel.core import model
from nova_accel.core import naming
from tests.unit import build

_DISK = 0x010802
_ONCE = {'vendor_id': '10de', 'one_time_use': 'yes'}


@pytest.mark.parametrize('says, offered', [
    ({}, [False, False]),
    ({'one_time_use': 'no', 'keeps_data': 'no'}, [False, False]),
    ({'one_time_use': 'yes'}, [True, False]),
    ({'keeps_data': 'yes'}, [True, True])])
def test_disk_is_offered_only_with_one_time_use_or_keeps_data(
        says, offered):
    """As a whole, and as a VF."""
    disks = [build.function('0000:81:00.0', class_code=_DISK),
             build.function('0000:82:00.1', class_code=_DISK,
                            physfn='0000:82:00.0')]
    card = build.function('0000:82:00.0', '1:1', num_vfs=1)
    host = build.host([*disks, card], {'vendor_id': '10de', **says})
    refused = build.refusals(host)
    assert [str(disk.address) not in refused for disk in disks] == offered
    assert len(host.devices) == sum(offered)


def test_one_time_use_is_only_for_whole_devices():
    vfs = build.card('0000:85:00.0', 2)
    parent = build.function('0000:81:00.0', mdev_types=(
        model.MdevType('nvidia-1', 2),))
    host = build.host(
        [*vfs, parent], {'product_id': '37c9', 'one_time_use': 'yes'},
        {**_ONCE, 'mdev_type': 'nvidia-1'})
    assert host.devices == ()
    assert set(build.refusals(host)) == {
        '0000:81:00.0', '0000:85:00.1', '0000:85:00.2'}
    assert all('is for whole devices' in reason
               for reason in build.refusals(host).values())


def test_one_time_use_device_has_the_trait_of_nova():
    host = build.host([build.function('0000:81:00.0')], _ONCE)
    assert (naming.ONE_TIME_USE_TRAIT
            in host.devices[0].regions[0].traits)
