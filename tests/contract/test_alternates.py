# SPDX-License-Identifier: Apache-2.0
"""The candidates that nova-scheduler sends to nova-conductor."""

import copy
import inspect

from nova import objects
from nova.scheduler import manager
from oslo_serialization import jsonutils
import pytest

from nova_accel.scheduler import choose_devices
from nova_accel.scheduler import filter as filter_
from tests.bench import fleet as fleets
from tests.functional import cloud

_SERVER = 'a6a12670-7014-4cff-a563-cea949b57fb3'


@pytest.fixture
def passed():
    """Return a fleet, and a host for which the filter chose two devices."""
    fleet = fleets.Fleet(1)
    [state] = filter_.AcceleratorFilter().filter_all(
        fleet.states(2), fleets.request(2))
    state.cell_uuid = _SERVER
    return fleet, state


def _sent(state, candidate):
    return jsonutils.loads(objects.Selection.from_host_state(
        state, candidate, '1.36').allocation_request)


def test_alternate_allocates_units_of_the_class_only(passed):
    fleet, state = passed
    [candidate] = state.allocation_candidates
    before = copy.deepcopy(dict(candidate))
    sent = _sent(state, candidate)
    assert not choose_devices.devices(sent)
    assert sent['mappings'] == candidate['mappings']
    assert sent['allocations'][fleet.hosts[0].counter] == {
        'resources': {cloud.GPU: 2}}
    assert dict(candidate) == before


def test_claimed_candidate_is_sent_unchanged(passed):
    _fleet, state = passed
    [candidate] = state.allocation_candidates
    candidate.claim(_SERVER)
    assert _sent(state, candidate) == candidate
    assert len(choose_devices.devices(candidate)) == 2


@pytest.mark.parametrize('candidate', [
    None, {'allocations': {}, 'mappings': {}}])
def test_other_candidates_are_sent_unchanged(passed, candidate):
    _fleet, state = passed
    assert _sent(state, candidate) == candidate
    assert objects.Selection.from_host_state(state).service_host == 'host0'


def test_nova_sends_the_candidate_that_it_claimed():
    source = inspect.getsource(manager.SchedulerManager)
    assert 'claimed_alloc_reqs.append(alloc_req)' in source
    assert 'allocation_request=selected_alloc_req,' in source
    assert 'alloc_req = host.allocation_candidates[0]' in source
