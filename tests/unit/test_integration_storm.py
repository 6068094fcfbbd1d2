# SPDX-License-Identifier: Apache-2.0
"""The checks of the storm on nested compute nodes, without a cloud."""

import collections
import dataclasses

import pytest

from tests.integration.storm import never
from tests.integration.storm import sights

VF, MDEV, CARD = '0000:41:01.0', 'a-uuid', '0000:41:00.0'

RIGHT = sights.Sight(
    {'one': sights.Domain('running', (VF,)),
     'two': sights.Domain('running', (MDEV,)),
     'off': sights.Domain('off', ())},
    {VF: ['one'], MDEV: ['two']}, {VF: CARD, MDEV: CARD},
    frozenset({('one', '0000:05:00.0', 0)}))
SERVERS = [never.Server('one', 'ACTIVE', 'host', {'A': 1}),
           never.Server('two', 'ACTIVE', 'host', {'B': 1}),
           never.Server('off', 'SHUTOFF', 'host', {})]


def units(**consumers):
    return {consumer: collections.Counter({what: 1}) for consumer, what
            in consumers.items()}


ALLOCATIONS = never.Allocations(units(one='A', two='B'),
                                units(one=CARD, two=CARD))


def happened(sight=RIGHT, servers=SERVERS, allocations=ALLOCATIONS,
             excused=()):
    return never.happened({'host': sight}, servers, {'host': allocations},
                          excused)


def with_domain(name, *changes):
    return dataclasses.replace(RIGHT, domains={
        **RIGHT.domains, name: sights.Domain(*changes)})


def test_nothing_is_wrong():
    assert happened() == []


@pytest.mark.parametrize('sight, said', [
    (dataclasses.replace(RIGHT, opened={VF: ['one', 'two'], MDEV: ['two']}),
     f'host: {VF} is in the guests of one, two'),
    (with_domain('off', 'running', (VF,)),
     f'host: {VF} is in the guests of off, one'),
    (dataclasses.replace(RIGHT, read=frozenset({('one', '05', 0xcafe)})),
     'host: the guest of one read 0xcafe in its 05'),
    (with_domain('off', 'running', ()),
     'off is SHUTOFF on host, and its domain is running'),
    (with_domain('other', 'off', ()),
     'host: a domain of other, which is not there'),
    (with_domain('one', 'running', ()), 'one is ACTIVE on host with []'),
    (dataclasses.replace(RIGHT, opened={MDEV: ['two']}),
     f"one is ACTIVE on host with ['{VF}'], and its QEMU has [] open")])
def test_machine_is_wrong(sight, said):
    assert any(line.startswith(said) for line in happened(sight))


def test_server_without_domain():
    less = {name: domain for name, domain in RIGHT.domains.items()
            if name != 'two'}
    assert 'two is ACTIVE on host, without a domain' in happened(
        dataclasses.replace(RIGHT, domains=less))


@pytest.mark.parametrize('classes, cards, said', [
    (units(one='A', two='B', gone='A'), units(one=CARD, two=CARD),
     'host: allocations of gone, which is not there'),
    (units(one='A'), units(one=CARD),
     "two is ACTIVE on host and has allocations of {} instead of {'B': 1}"),
    (units(one='A', two='B'), units(one=CARD, two='other'),
     "two is ACTIVE on host with ['a-uuid'], and has allocations of "
     "{'other': 1}")])
def test_allocations_are_wrong(classes, cards, said):
    assert said in happened(allocations=never.Allocations(classes, cards))


def test_source_of_a_resize_keeps_what_it_has():
    moved = never.Server('one', 'VERIFY_RESIZE', 'other', {'A': 1}, 'host',
                         'migration')
    there = dataclasses.replace(RIGHT, domains={
        'one': sights.Domain('running', (VF,))}, opened={VF: ['one']})
    here = dataclasses.replace(with_domain('one', 'off', (VF,)),
                               opened={MDEV: ['two']})
    promised = never.Allocations(units(migration='A', two='B'),
                                 units(migration=CARD, two=CARD))
    assert never.happened(
        {'host': here, 'other': there}, [moved, *SERVERS[1:]],
        {'host': promised, 'other': never.Allocations(
            units(one='A'), units(one=CARD))}) == []


def test_server_in_the_middle_is_excused_but_shares_nothing():
    wrong = dataclasses.replace(
        with_domain('gone', 'running', (VF,)),
        opened={VF: ['one', 'gone'], MDEV: ['two']})
    assert happened(wrong, excused=['gone']) == [
        f'host: {VF} is in the guests of gone, one']


def test_devices_of_a_server_change():
    other = with_domain('one', 'running', (MDEV,))
    assert never.changed({'host': RIGHT}, {'host': other}, ['one', 'two']) == [
        f"one had [('host', '{VF}')], and has [('host', '{MDEV}')]"]
    assert never.changed({'host': RIGHT}, {'host': RIGHT}, ['one']) == []
