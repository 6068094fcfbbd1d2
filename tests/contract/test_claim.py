# SPDX-License-Identifier: Apache-2.0
"""Claims of the devices that the filter chose."""

import logging
import random

import greenlet
from nova import objects
import nova.conf
from nova.scheduler import host_manager
from nova.scheduler import utils
import pytest

from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.placement import host_summary
from nova_accel.core.placement import inventory
from nova_accel.scheduler import candidates
from nova_accel.scheduler import choose_devices
from nova_accel.scheduler import filter as filter_
from nova_accel.scheduler import patches
from tests.bench import fleet as fleets
from tests.unit import build

_ONE, _OTHER = (f'a6a12670-7014-4cff-a563-cea949b57fb{number}'
                for number in (3, 4))


class _Client:
    """A fake Placement client whose claims can fail.

    :param claimed: result of each claim
    :param found: candidates for the next request
    """

    def __init__(self, claimed, found=()):
        self._claimed = list(claimed)
        self._found = found

    def claim_resources(self, *_args, **_kwargs):
        return self._claimed.pop(0)

    def get_allocation_candidates(self, *_args):
        return self._found, {}, '1.36'


class _Resources:
    """The part of a ResourceRequest that a claim uses."""

    def get_request_group(self, _suffix):
        return objects.RequestGroup()


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    monkeypatch.setattr(utils, 'claim_resources', getattr(
        utils.claim_resources, 'nova_accel', utils.claim_resources))
    patches.claim_resources.install()


def _passed(count, hosts=1):
    """Return a fleet, its hosts that passed the filter, and the request."""
    fleet = fleets.Fleet(hosts)
    spec = fleets.request(count)
    spec.project_id = spec.user_id = 'x'
    states = list(filter_.AcceleratorFilter().filter_all(
        fleet.states(count), spec))
    states[0].allocation_candidates[0].answer.resources = _Resources()
    return fleet, states, spec


def _claim(client, spec, state, uuid):
    return utils.claim_resources(
        None, client, spec, uuid, state.allocation_candidates[0], '1.36')


def _infos(caplog):
    return [record.getMessage() for record in caplog.records
            if record.levelno == logging.INFO]


def test_placed_server_logs_no_rejection(caplog):
    """A placed server without an alternate host logs no rejection.

    Nova runs the filters again for alternates of a server that is placed.
    """
    caplog.set_level(logging.INFO)
    _fleet, [state], spec = _passed(8)
    spec.instance_uuid = _ONE
    assert _claim(_Client([True]), spec, state, _ONE)
    state.num_instances += 1
    assert not list(filter_.AcceleratorFilter().filter_all([state], spec))
    assert not _infos(caplog)


def test_unplaced_server_logs_its_rejection(caplog):
    caplog.set_level(logging.INFO)
    _fleet, [state], spec = _passed(8)
    assert _claim(_Client([True]), spec, state, _ONE)
    state.num_instances += 1
    spec.instance_uuid = _OTHER
    assert not list(filter_.AcceleratorFilter().filter_all([state], spec))
    assert [text.startswith(f'{_OTHER} has no valid host')
            for text in _infos(caplog)] == [True]


def test_failed_claim_without_other_devices_logs_the_reason(caplog):
    caplog.set_level(logging.INFO)
    fleet, [state], spec = _passed(8)
    [host] = fleet.hosts
    fleet.claim(host, fleet.free(host)[:1])
    [before] = state.allocation_candidates
    assert not _claim(_Client([False], [before]), spec, state, _ONE)
    [text] = _infos(caplog)
    assert _ONE in text and 'host0' in text and 'free' in text
    assert len(choose_devices.devices(before)) == 8


def test_failed_claim_without_candidates_is_logged(caplog):
    caplog.set_level(logging.INFO)
    _fleet, [state], spec = _passed(1)
    assert not _claim(_Client([False]), spec, state, _ONE)
    [text] = _infos(caplog)
    assert _ONE in text and 'host0' in text and 'any more' in text


class _Placement:
    """A fake Placement with one host of 32 GPUs, four behind each switch.

    Before each request it switches to the other schedulers. So all of them
    have candidates before the first one claims devices.
    """

    def __init__(self):
        self.offered = inventory.NodeInventory(model.Host(devices=tuple(
            build.device(
                build.region('CUSTOM_GPU', 1, bus=number),
                at=f'0000:{number:02x}:00.0', location=model.Location(
                    number // 8, f'pci0000:{number // 4:02x}', ('port',),
                    f'0000:{number // 4:02x}:01.0'))
            for number in range(32))),
            inventory.Node(build.ROOT, 'host')).offered
        self.taken = set()

    def candidate(self):
        counter = naming.class_provider_uuid(build.ROOT, 'CUSTOM_GPU')
        return candidates.Candidate(
            {'allocations': {counter: {'resources': {'CUSTOM_GPU': 1}}},
             'mappings': {'_ACCEL0': [counter]}},
            candidates.Answer({
                counter: _said('CUSTOM_GPU', 32, len(self.taken)),
                **{item.uuid: _said(naming.unit_class('CUSTOM_GPU'), 1,
                                    item.uuid in self.taken)
                   for item in self.offered}}, _Resources()))

    def get_allocation_candidates(self, *_args):
        greenlet.getcurrent().parent.switch()
        return [self.candidate()], {}, '1.36'

    def claim_resources(self, _context, _uuid, candidate, *_args, **_kwargs):
        greenlet.getcurrent().parent.switch()
        wanted = set(choose_devices.devices(candidate))
        is_free = wanted.isdisjoint(self.taken)
        if is_free:
            self.taken |= wanted
        return is_free


def _said(resource_class, capacity, used):
    return {'resources': {resource_class: {
        'capacity': capacity, 'used': int(used)}},
        'traits': [*naming.OUR_TRAITS], 'parent_provider_uuid': build.ROOT,
        'root_provider_uuid': build.ROOT}


def _schedule(placement):
    """Return whether a scheduler with its own host state places a server."""
    state = host_manager.HostState('host', 'host', 'cell')
    state.uuid = build.ROOT
    state.stats = {host_summary.KEY: host_summary.dumps(placement.offered)}
    state.allocation_candidates = [placement.candidate()]
    spec = objects.RequestSpec(
        flavor=objects.Flavor(extra_specs={
            'resources_ACCEL0:CUSTOM_GPU': '1'}),
        num_instances=1, numa_topology=None, pci_requests=None,
        instance_uuid=_ONE, project_id='x', user_id='x')
    assert filter_.AcceleratorFilter().host_passes(state, spec)
    return _claim(placement, spec, state, _ONE)


@pytest.mark.parametrize('seed', range(3))
def test_competing_schedulers_all_claim_a_device(monkeypatch, seed):
    nova.conf.CONF([], project='nova', default_config_files=[])
    objects.register_all()
    monkeypatch.setattr(patches, '_CHANCE', random.Random(seed), raising=False)
    placement = _Placement()
    placed = []
    schedulers = [
        greenlet.greenlet(lambda: placed.append(_schedule(placement)))
        for _number in range(32)]
    while schedulers:
        for scheduler in schedulers:
            scheduler.switch()
        schedulers = [scheduler for scheduler in schedulers
                      if not scheduler.dead]
    assert placed == [True] * 32
