# SPDX-License-Identifier: Apache-2.0
"""Units of Regions that domains hold."""

from unittest import mock
import uuid

from nova_accel.core import held_devices
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core import naming
from tests.unit import build


def _held(cards):
    """Cards with four Regions each, and a domain for one unit of each."""
    host = model.Host(devices=tuple(
        model.Device(model.PciAddress(0, card, 0, 0), '10de:20b0',
                     model.Location(), tuple(
                         model.Region(f'CUSTOM_X_{number}', 'CUSTOM_X',
                                      frozenset(), ((model.PciAddress(
                                          0, card, 1 + number, 0),),),
                                      variant=f'type{number}')
                         for number in range(4))) for card in range(cards)))
    offered = build.inventory(host).offered
    return offered, {str(uuid.uuid4()): (hostdev.Hostdev(
        item.region.units[0][0], naming.alias('ACCEL0', item.uuid, 0)),)
        for item in offered}


def test_units_are_counted_for_each_of_many_regions():
    offered, held = _held(64)
    assert held_devices.counts(offered, held) == {
        item.uuid: 1 for item in offered}


def test_alias_of_each_hostdev_is_parsed_once():
    offered, held = _held(64)
    with mock.patch.object(naming, 'parse_alias',
                           wraps=naming.parse_alias) as parse:
        held_devices.counts(offered, held)
    assert parse.call_count == len(held)
