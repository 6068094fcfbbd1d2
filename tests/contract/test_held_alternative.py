# SPDX-License-Identifier: Apache-2.0
"""What a live migration reads, and what it does if Placement has no answer.

tests.functional.test_alternatives has the migration itself.
"""

from unittest import mock

from nova import exception
from nova import objects
import pytest

from nova_accel.scheduler import held_alternative
from tests.unit import build

_ANY = {'resources_ACCEL0:CUSTOM_GPU': '1',
        'nova_accel:any_ACCEL0-0': 'CUSTOM_H100',
        'nova_accel:any_ACCEL0-1': 'CUSTOM_A100'}


@pytest.fixture(autouse=True)
def registered():
    objects.register_all()


def _pinned(specs, held):
    """Return the extra specs after pinning; ``held`` reads allocations."""
    spec = objects.RequestSpec(flavor=objects.Flavor(extra_specs=dict(specs)),
                               instance_uuid=build.ROOT)
    client = mock.Mock(**{
        'get_allocs_for_consumer.side_effect': held,
        'get_provider_traits.return_value.traits': {'CUSTOM_A100'}})
    with mock.patch.object(held_alternative, '_live_migration',
                           return_value='migration') as read, \
            mock.patch.object(held_alternative.report,
                              'report_client_singleton', return_value=client):
        held_alternative.pin(spec)
    return spec.flavor.extra_specs, read.called


def _one(_context, _migration):
    return {'allocations': {
        'device': {'resources': {'CUSTOM_UNIT_OF_CUSTOM_GPU': 1}},
        'class': {'resources': {'CUSTOM_GPU': 1}}}}


def test_held_alternative_is_required():
    specs, _read = _pinned(_ANY, _one)
    assert specs == {'resources_ACCEL0:CUSTOM_GPU': '1',
                     'trait_ACCEL0:CUSTOM_A100': 'required'}


@pytest.mark.parametrize('held', [
    lambda *_args: {'allocations': {}},
    exception.ConsumerAllocationRetrievalFailed(consumer_uuid='', error='')])
def test_alternatives_stay_if_placement_does_not_tell(held):
    assert _pinned(_ANY, held)[0] == _ANY


def test_nothing_is_read_without_alternatives():
    specs = {'resources_ACCEL0:CUSTOM_GPU': '1'}
    assert _pinned(specs, _one) == (specs, False)
