# SPDX-License-Identifier: Apache-2.0
"""Moves of allocations to another resource class."""

import collections

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.assignment import class_move
from nova_accel.core.placement import inventory
from tests.unit import build

_MOVES = {'CUSTOM_H100': 'CUSTOM_GPU', 'CUSTOM_A100': 'CUSTOM_GPU'}
_PROVIDERS = [f'00000000-0000-5000-8000-00000000000{number}'
              for number in range(6)]
_UNIT = naming.unit_class

_allocated = st.dictionaries(
    st.sampled_from(_PROVIDERS), st.dictionaries(
        st.sampled_from('abcde'), st.integers(1, 3), max_size=3))


def _class_provider(name):
    return naming.class_provider_uuid(build.ROOT, name)


@given(_allocated)
def test_sets_are_the_smallest_that_share_nothing(allocated):
    found = class_move.together(allocated)
    assert sorted(uuid for group in found for uuid in group.providers) == (
        sorted(uuid for uuid, consumers in allocated.items() if consumers))
    for group in found:
        # All reach each other.
        reached, providers = {min(group.consumers)}, set()
        for _step in _PROVIDERS:
            providers |= {uuid for uuid, consumers in allocated.items()
                          if reached & consumers.keys()}
            reached |= {name for uuid in providers
                        for name in allocated[uuid]}
        assert (reached, providers) == (group.consumers, group.providers)


def _record(total, reserved=0):
    return {'total': total, 'reserved': reserved, 'min_unit': 1,
            'max_unit': total, 'step_size': 1, 'allocation_ratio': 1.0}


def _answer(**records):
    return {'resource_provider_generation': 1, 'inventories': records}


def _consumers(allocated, models):
    """Return the answers of Placement for the consumers of providers."""
    found = collections.defaultdict(lambda: {build.ROOT: {
        'resources': {'VCPU': 2}}})
    for uuid, amounts in allocated.items():
        for name, amount in amounts.items():
            for provider, unit in ((uuid, _UNIT(models[uuid])),
                                   (_class_provider(models[uuid]),
                                    models[uuid])):
                found[name].setdefault(provider, {
                    'resources': collections.Counter()})[
                        'resources'][unit] += amount
    return {name: {'allocations': held, 'project_id': 'p', 'user_id': 'u',
                   'consumer_generation': 4} for name, held in found.items()}


def _sums(written):
    """Return amounts by class of a consumer, and by provider and class."""
    by_class, by_provider = collections.Counter(), collections.Counter()
    for provider, allocation in written['allocations'].items():
        by_class.update(allocation['resources'])
        by_provider.update({(provider, unit): amount for unit, amount
                            in allocation['resources'].items()})
    return by_class, by_provider


@given(_allocated.filter(any), st.lists(st.sampled_from([*_MOVES]),
                                        min_size=6, max_size=6),
       st.integers(0, 3))
def test_each_server_has_as_many_units_and_they_fit(allocated, names, free):
    models = dict(zip(_PROVIDERS, names, strict=True))
    totals = {uuid: sum(consumers.values()) + 1
              for uuid, consumers in allocated.items()}
    new = _class_provider('CUSTOM_GPU')
    payload = class_move.reshape(
        build.ROOT, {uuid: (models[uuid], 'CUSTOM_GPU') for uuid in allocated},
        {**{uuid: _answer(**{_UNIT(models[uuid]): _record(total, total)})
            for uuid, total in totals.items()},
         new: _answer(**{'CUSTOM_GPU': _record(free)} if free else {})},
        _consumers(allocated, models))

    used = collections.Counter()
    for name, written in payload['allocations'].items():
        assert written['consumer_generation'] == 4
        by_class, by_provider = _sums(written)
        used += by_provider
        count = sum(amounts.get(name, 0) for amounts in allocated.values())
        assert by_class == {'VCPU': 2, 'CUSTOM_GPU': count,
                            _UNIT('CUSTOM_GPU'): count}
    records = {uuid: answer['inventories']
               for uuid, answer in payload['inventories'].items()}
    assert all(amount <= records[uuid][unit]['total']
               - records[uuid][unit]['reserved']
               for (uuid, unit), amount in used.items() if uuid != build.ROOT)
    assert records.pop(new)['CUSTOM_GPU']['total'] == free + sum(
        totals.values())
    assert {tuple(found) for found in records.values()} == {
        (_UNIT('CUSTOM_GPU'),)}


@pytest.mark.parametrize('device, classes', [
    ({'status': 404}, _answer(CUSTOM_GPU=_record(1))),
    (_answer(CUSTOM_UNIT_OF_CUSTOM_GPU=_record(1)),
     _answer(CUSTOM_GPU=_record(1))),
    (_answer(CUSTOM_UNIT_OF_CUSTOM_H100=_record(1)), {'status': 404})])
def test_providers_that_are_not_as_expected(device, classes):
    with pytest.raises(errors.AssignmentError):
        class_move.reshape(
            build.ROOT, {_PROVIDERS[0]: ('CUSTOM_H100', 'CUSTOM_GPU')},
            {_PROVIDERS[0]: device, _class_provider('CUSTOM_GPU'): classes},
            {})


def test_consumer_whose_allocations_have_gone():
    """A cold migration has begun: the migration has them now."""
    with pytest.raises(errors.AssignmentError, match='consumer a: has no'):
        class_move.reshape(build.ROOT, {}, {}, {'a': {'allocations': {}}})


@pytest.mark.parametrize('region, reason', [
    (build.region('CUSTOM_GPU', traits=['CUSTOM_H100']), None),
    (build.region('CUSTOM_GPU'), 'lacks the trait CUSTOM_H100'),
    (build.region('CUSTOM_NIC', traits=['CUSTOM_H100']), 'has CUSTOM_NIC'),
    (None, 'no entry offers its devices')])
def test_providers_that_can_change(region, reason):
    devices = [build.device(region)] if region else []
    uuid = naming.provider_uuid(build.ROOT, build.address('0000:81:00.0'))
    here = inventory.NodeInventory(
        model.Host(devices=tuple(devices)), inventory.Node(
            build.ROOT, 'host1', {uuid: 'host1_accel_0000:81:00.0'}))
    found, problems = class_move.outdated(
        here, lambda _uuid: [_UNIT('CUSTOM_H100')], _MOVES)
    assert (uuid in found) == (reason is None)
    assert [reason] * bool(reason) == [
        reason for problem in problems.values() if reason in str(problem)]
    assert class_move.outdated(here, lambda _uuid: [_UNIT('CUSTOM_GPU')],
                               _MOVES) == ({}, {})
