# SPDX-License-Identifier: Apache-2.0
"""What a server would get on another host."""

import pytest

from nova_accel.core.moves import fleet as fleets
from nova_accel.core.moves import node
from nova_accel.core.request import device_profile
from nova_accel.core.request import flavor_request
from nova_accel.core.request import flavor_specs
from tests.unit.core.moves import brute_force


def _first_with_x():
    return flavor_request.parse(flavor_specs.expand(device_profile.Profile(
        'p', (device_profile.Group(
            {brute_force.GPU: 1}, {}, device_profile.OFF,
            any_of=(('CUSTOM_X',), ('CUSTOM_Y',))),)), {}))


@pytest.mark.parametrize('traits, way, device', [
    (['CUSTOM_X', 'CUSTOM_Y'], fleets.LIVE, 1),
    (['CUSTOM_X'], fleets.COLD, 0)])
def test_live_migration_keeps_the_alternative(traits, way, device):
    booked = brute_force.Booked(
        brute_force.host(name, len(with_), each=with_) for name, with_ in (
            ('from', ['CUSTOM_Y']), ('to', traits)))
    assert booked.boot('from', _first_with_x())
    nodes = node.Nodes(booked.fleet)
    arrival = nodes.of('to').arrival('s0', nodes.of('from'))
    assert (arrival.way, dict(arrival.units)) == (way, {f'to {device}': 1})
