# SPDX-License-Identifier: Apache-2.0
"""Findings of the audit of machine, Placement and domains."""

import dataclasses

import hypothesis
from hypothesis import strategies

from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.assignment import consistency
from nova_accel.core.placement import inventory
from tests.unit import build

NAME = 'compute1'
SERVERS = [f'00000000-0000-4000-8000-00000000000{digit}' for digit in '1234']
A, B, C, _D = SERVERS
GPU, QAT = '0000:81:00.0', '0000:85:00.0'

_FUNCTIONS = (build.function(GPU),
              # Two functions of one IOMMU group.
              build.function('0000:82:00.0', iommu_group='both'),
              build.function('0000:82:00.1', iommu_group='both'),
              *build.card(QAT, 4),
              build.function('0000:44:00.0', mdev_types=(
                  model.MdevType('nvidia-471', 3),)),
              build.function('0000:99:00.0', '1af4:1000'))
_ENTRIES = ({'vendor_id': '10de', 'address': {'bus': '8[12]'}},
            {'product_id': '37c9', 'resource_class': 'QAT'},
            {'address': '0000:44:00.0', 'mdev_type': 'nvidia-471'})

HOST = build.host(_FUNCTIONS, *_ENTRIES)
OFFERED = {item.uuid: item
           for item in build.inventory(HOST, NAME).offered}


def uuid(at):
    return naming.provider_uuid(build.ROOT, build.address(at))


def name(at):
    return f'{NAME}_accel_{at}'


def known(*more):
    return {item.uuid: item.name for item in OFFERED.values()} | {
        uuid(at): name(at) for at in more}


def give(item, unit, index=0):
    """Return the hostdevs of one unit."""
    return tuple(hostdev.Hostdev(address, naming.alias(
        'ACCEL0', item.uuid, index + number))
        for number, address in enumerate(unit))


def held(at, provider=None, index=0):
    """Return one hostdev that nova_accel added."""
    return hostdev.Hostdev(build.address(at), naming.alias(
        'ACCEL0', provider or uuid(at), index))


def mdev(server, index=0):
    provider = uuid('0000:44:00.0')
    return hostdev.Hostdev(
        model.MdevAddress(naming.mdev_uuid(server, provider, index)),
        naming.alias('ACCEL0', provider, index))


def find(allocated, held_, host=HOST, gone=()):
    """Return the findings for units allocated by provider, held by server."""
    return consistency.compare(consistency.gather(
        inventory.NodeInventory(
            host, inventory.Node(build.ROOT, NAME, known(*gone))),
        lambda provider: {
            consumer: {'resources': {'CUSTOM_UNIT_OF_ANY': amount,
                                     'CUSTOM_LICENCE': 1}}
            for consumer, amount in allocated.get(provider, {}).items()},
        lambda: held_))


def test_held_as_allocated():
    assert find({uuid(GPU): {A: 1}}, {A: (held(GPU),)}) == ()


def test_nothing_held_and_nothing_allocated():
    assert find({}, {}) == ()


def test_held_and_not_allocated():
    [finding] = find({}, {A: (held(GPU),)})
    assert (finding.thing, finding.provider, finding.withheld,
            finding.passing) == (
        f'resource provider {name(GPU)}', uuid(GPU), 1, False)
    assert finding.reason == (
        f'1 of its units is held, 0 are allocated: {A} should not have it')


def test_text_of_a_finding_has_the_remedy():
    [finding] = find({}, {A: (held(GPU),)})
    assert str(finding) == (
        f'{finding.thing}: {finding.reason}; {finding.remedy}')


def test_held_by_a_domain_that_is_not_ours():
    [finding] = find({}, {A: (hostdev.Hostdev(build.address(GPU), ''),)})
    assert f'{A} should not have it' in finding.reason
    assert finding.withheld == 1


def test_domain_without_allocation_in_a_pool_is_named():
    [finding] = find({uuid(QAT): {A: 1}}, {
        A: (held('0000:85:00.1', uuid(QAT)),),
        B: (held('0000:85:00.2', uuid(QAT)),)})
    assert finding.withheld == 1
    assert f'allocated: {B} should not have it' in finding.reason


def test_server_holds_more_than_it_has_allocated():
    [finding] = find({uuid(QAT): {A: 1}}, {
        A: (held('0000:85:00.1', uuid(QAT)),
            held('0000:85:00.2', uuid(QAT), 1))})
    assert f'{A} should not have it' in finding.reason
    assert finding.withheld == 1


def test_functions_of_one_iommu_group_are_one_unit():
    at = '0000:82:00.0'
    both = held(at), held('0000:82:00.1', uuid(at), 1)
    assert find({uuid(at): {A: 1}}, {A: both}) == ()
    [finding] = find({}, {A: both})
    assert finding.withheld == 1


def test_allocations_of_a_migration_cover_what_the_server_holds():
    migration = C
    assert find({uuid(GPU): {migration: 1}}, {A: (held(GPU),)}) == ()


def test_allocated_and_not_held():
    [finding] = find({uuid(GPU): {A: 1}}, {})
    assert (finding.thing, finding.provider, finding.withheld,
            finding.passing) == (
        f'resource provider {name(GPU)}', uuid(GPU), 0, True)
    assert f'{A} should have it' in finding.reason


def test_allocated_to_a_server_and_held_by_a_domain_that_is_not_ours():
    [finding] = find({uuid(GPU): {A: 1}},
                     {B: (hostdev.Hostdev(build.address(GPU), ''),)})
    assert f'{A} should have it' in finding.reason


def test_two_functions_of_one_unit_do_not_count_as_two_units():
    entry = {'vendor_id': '10de'}
    pairs = [build.function(f'0000:85:0{slot}.{number}', physfn=QAT,
                            iommu_group=f'pair{slot}')
             for slot in (1, 2) for number in (0, 1)]
    host = build.host([build.function(QAT, '8086:37c8', num_vfs=4), *pairs],
                      entry)
    findings = find({uuid(QAT): {A: 1, B: 1}}, {
        A: (held('0000:85:01.0', uuid(QAT)),
            held('0000:85:01.1', uuid(QAT), 1))}, host)
    assert [f'{B} should have it' in finding.reason
            for finding in findings] == [True]


def test_device_in_two_domains():
    [finding] = find({uuid(GPU): {A: 1}},
                     {A: (held(GPU),), B: (held(GPU),)})
    assert finding.thing == f'device {GPU}'
    assert f'in the definitions of {A} and {B}' in finding.reason
    assert not finding.withheld


def test_unit_in_two_domains_is_not_reported_as_missing():
    twice = held('0000:85:00.1', uuid(QAT))
    assert [finding.thing for finding in find(
        {uuid(QAT): {A: 1, B: 1}}, {A: (twice,), B: (twice,)})] == [
        'device 0000:85:00.1']


def test_device_that_is_not_ours_in_two_domains_is_ignored():
    theirs = (hostdev.Hostdev(build.address('0000:99:00.0'), ''),)
    assert find({}, {A: theirs, B: theirs}) == ()


def test_mdevs():
    provider = uuid('0000:44:00.0')
    assert find({provider: {A: 2}}, {A: (mdev(A), mdev(A, 1))}) == ()
    [finding] = find({provider: {A: 1}}, {A: (mdev(A), mdev(A, 1))})
    assert finding.withheld == 1
    [finding] = find({provider: {A: 1}}, {})
    assert f'{A} should have it' in finding.reason


def test_no_more_mdevs_are_withheld_than_the_total():
    [finding] = find({}, {server: (mdev(server),) for server in SERVERS})
    assert finding.withheld == 3
    assert finding.reason.startswith('4 of its units are held')


def test_mdev_that_is_not_offered_any_more():
    provider = uuid('0000:44:00.0')
    host = build.host(_FUNCTIONS, *_ENTRIES[:2])
    findings = find({provider: {A: 1}}, {A: (mdev(A),)}, host)
    assert [(finding.reason, finding.provider) for finding in findings] == [
        ('is not offered any more', provider)]


def test_device_that_is_missing():
    at = '0000:90:00.0'
    [finding] = find({uuid(at): {A: 1}}, {A: (held(at),)}, gone=[at])
    assert finding.thing == f'device {at} of server {A}'
    assert finding.reason == 'is not there any more'
    assert finding.provider == uuid(at)


def test_another_card_at_the_address():
    function = _FUNCTIONS[0]
    provider = uuid(str(function.address))
    device = hostdev.Hostdev(function.address, naming.alias(
        'ACCEL0', provider, 0, '1bcf:001c'))
    [finding] = find({provider: {A: 1}}, {A: (device,)})
    assert finding.thing == f'device {function.address} of server {A}'
    assert finding.reason == (
        f'is {function.ids} now, the server had 1bcf:001c')
    assert finding.provider == provider
    known = dataclasses.replace(device, alias=naming.alias(
        'ACCEL0', provider, 0, function.ids))
    assert find({provider: {A: 1}}, {A: (known,)}) == ()


def test_device_that_is_refused_now():
    functions = [dataclasses.replace(_FUNCTIONS[0], use='disk sda is mounted')]
    [finding] = find({uuid(GPU): {A: 1}}, {A: (held(GPU),)},
                     build.host(functions, *_ENTRIES))
    assert finding.thing == f'device {GPU} of server {A}'
    assert 'disk sda is mounted' in finding.reason


def test_device_that_no_entry_names_any_more():
    [finding] = find({uuid(GPU): {A: 1}}, {A: (held(GPU),)},
                     build.host(_FUNCTIONS))
    assert finding.thing == f'device {GPU} of server {A}'
    assert finding.reason == 'no entry names it any more'


def test_held_device_is_now_offered_as_mdevs():
    at = '0000:44:00.0'
    reasons = [finding.reason for finding in find(
        {uuid(at): {A: 1}}, {A: (held(at),)})]
    assert 'no entry names it any more' in reasons


def test_region_that_an_entry_has_renamed():
    """The server got the device when the card had one Region, not two."""
    host = build.host(_FUNCTIONS[3:8], {
        'address': '0000:85:00.1', 'resource_class': 'BIG'}, _ENTRIES[1])
    [finding] = find({uuid(QAT): {A: 1}},
                     {A: (held('0000:85:00.1', uuid(QAT)),)}, host)
    assert finding.thing == f'resource provider {name(QAT)}_CUSTOM_BIG'
    assert finding.withheld == 1
    assert f'{A} has allocations of it as {name(QAT)}' in finding.reason
    assert finding.remedy.startswith('no action needed')


_units = [(item, unit) for item in OFFERED.values()
          if not item.region.mdevs for unit in item.region.units]


@strategies.composite
def consistent(draw):
    """Allocations, and servers that hold what they have allocated."""
    allocated, held_ = {}, {}
    for item, unit in draw(strategies.lists(
            strategies.sampled_from(_units), unique=True)):
        server = draw(strategies.sampled_from(SERVERS))
        amounts = allocated.setdefault(item.uuid, {})
        amounts[server] = amounts.get(server, 0) + 1
        held_[server] = held_.get(server, ()) + give(item, unit, len(
            held_.get(server, ())))
    for index in range(draw(strategies.integers(0, 3))):
        amounts = allocated.setdefault(uuid('0000:44:00.0'), {})
        amounts[A] = index + 1
        held_[A] = held_.get(A, ()) + (mdev(A, index),)
    return allocated, held_


@hypothesis.given(consistent())
def test_consistent_state_has_no_findings(state):
    assert find(*state) == ()


@hypothesis.given(consistent(), strategies.data())
def test_removed_allocation_is_found(state, data):
    allocated, held_ = state
    hypothesis.assume(allocated)
    provider = data.draw(strategies.sampled_from(sorted(allocated)))
    server = data.draw(strategies.sampled_from(sorted(allocated[provider])))
    lost = allocated[provider].pop(server)
    [finding] = find(allocated, held_)
    assert (finding.provider, finding.withheld) == (provider, lost)
    assert f'{server} should not have it' in finding.reason


@hypothesis.given(consistent(), strategies.data())
def test_removed_domain_is_found(state, data):
    allocated, held_ = state
    hypothesis.assume(held_)
    server = data.draw(strategies.sampled_from(sorted(held_)))
    del held_[server]
    findings = find(allocated, held_)
    assert {finding.provider for finding in findings} == {
        provider for provider, amounts in allocated.items()
        if server in amounts}
    assert all(finding.passing and f'{server} should have it'
               in finding.reason for finding in findings)


@hypothesis.given(consistent(), strategies.data())
def test_second_domain_with_the_same_devices_is_found(state, data):
    allocated, held_ = state
    hypothesis.assume(held_)
    server = data.draw(strategies.sampled_from(sorted(held_)))
    held_['twin'] = held_[server]
    assert {finding.thing for finding in find(allocated, held_)} == {
        f'device {device.address}' for device in held_[server]}


@hypothesis.given(consistent(), strategies.data())
def test_removed_device_is_found(state, data):
    allocated, held_ = state
    there = {function.address for function in HOST.functions}
    functions = {device.address for hostdevs in held_.values()
                 for device in hostdevs} & there
    hypothesis.assume(functions)
    gone = data.draw(strategies.sampled_from(sorted(functions)))
    host = build.host([function for function in _FUNCTIONS
                       if function.address != gone], *_ENTRIES)
    [server] = [server for server, hostdevs in held_.items()
                if gone in {device.address for device in hostdevs}]
    assert [finding.reason for finding in find(allocated, held_, host)
            if finding.thing == f'device {gone} of server {server}'] == [
        'is not there any more']


def test_consumer_that_nova_does_not_know():
    """It can have an allocation of the class provider, but no device."""
    of_class = naming.class_provider_uuid(build.ROOT, 'CUSTOM_QAT')
    allocations = {uuid(GPU): {A: 'CUSTOM_UNIT_OF_ANY'},
                   of_class: {A: 'CUSTOM_QAT', B: 'CUSTOM_QAT'}}
    snapshot = consistency.gather(
        inventory.NodeInventory(HOST, inventory.Node(
            build.ROOT, NAME, known() | {
                of_class: naming.class_provider_name(NAME, 'CUSTOM_QAT')})),
        lambda provider: {
            consumer: {'resources': {name: 1}} for consumer, name
            in allocations.get(provider, {}).items()}, dict)
    [missed] = consistency.compare(snapshot)
    assert f'{A} should have it' in missed.reason
    assert consistency.compare(snapshot, {A, B}) == ()
    assert [consistency.orphaned_allocations(snapshot, consumer)
            .reason.partition(', and')[0] for consumer in (A, B)] == [
        f'has allocations of {NAME}_accel_{GPU}, {NAME}_accel_CUSTOM_QAT',
        f'has allocations of {NAME}_accel_CUSTOM_QAT']


_addresses = strategies.sampled_from(
    sorted(function.address for function in _FUNCTIONS)
    + [build.address('0000:f0:00.0'), model.MdevAddress(A)])
_aliases = strategies.sampled_from(
    ['', 'ua-other', *(naming.alias('ACCEL0', provider, 0)
                       for provider in [*OFFERED, C])])
_anything = strategies.dictionaries(
    strategies.sampled_from(SERVERS), strategies.lists(strategies.builds(
        hostdev.Hostdev, _addresses, _aliases), max_size=6).map(tuple))
_allocations = strategies.dictionaries(
    strategies.sampled_from([*OFFERED, C]), strategies.dictionaries(
        strategies.sampled_from(SERVERS), strategies.integers(1, 9)))


@hypothesis.given(_allocations, _anything, strategies.sets(
    strategies.sampled_from(sorted([*OFFERED, C]))), strategies.booleans())
def test_any_state_can_be_compared(allocated, held_, names, empty):
    snapshot = consistency.Snapshot(
        model.Host() if empty else HOST, {} if empty else OFFERED,
        dict.fromkeys(names, 'name'), allocated, held_)
    for finding in consistency.compare(snapshot):
        assert finding.thing and finding.reason and finding.remedy
        if finding.withheld:
            # Allocated units need not be withheld.
            item = snapshot.offered[finding.provider]
            assert 0 < finding.withheld <= len(item.region.units) - sum(
                allocated.get(finding.provider, {}).values())
