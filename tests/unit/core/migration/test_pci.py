# SPDX-License-Identifier: Apache-2.0
"""From ``[pci] device_spec`` and ``alias`` to entries and profiles."""

import json
import shlex

import pytest

from nova_accel.core.device_spec import spec_entry
from nova_accel.core.migration import pci
from nova_accel.core.migration import plan
from nova_accel.core.request import flavor_specs

GPU = {'vendor_id': '10de', 'product_id': '2330'}
QAT = {'vendor_id': '8086', 'product_id': '37C9'}
GPU_CLASS = 'CUSTOM_PCI_10DE_2330'
NUMA = {'hw:numa_nodes': '1'}


def _flavor(alias, name='f', **specs):
    return plan.Flavor(name, f'id-{name}', {
        flavor_specs.ALIAS_KEY: alias,
        **{key.replace('__', ':'): value for key, value in specs.items()}},
        {'vcpus': 2, 'ram': 1024})


def _make(device_spec=(GPU,), alias=(), flavors=(), servers=()):
    return pci.make(pci.Source(
        [*map(json.dumps, device_spec)], [*map(json.dumps, alias)], flavors,
        servers), 'out')


def _named(spec, name='gpu', **more):
    return {'name': name, **spec, **more}


def _profiles(planned):
    return {step.file.content['name']: step.file.content['groups']
            for step in planned.steps
            if step.file and isinstance(step.file.content, dict)}


def _entries(planned):
    [text] = [step.file.content for step in planned.steps
              if step.file and step.file.path == 'out/nova_accel.conf']
    head, *lines = text.splitlines()
    assert head == '[nova_accel]'
    return [json.loads(line.removeprefix('device_spec = '))
            for line in lines]


def _group(alias, device_spec=(GPU,), **specs):
    """Return the one group of the profile of a flavor, and the losses."""
    planned = _make(device_spec, [alias], [_flavor('gpu:1', **specs)])
    [[group]] = _profiles(planned).values()
    return group, [*map(str, planned.losses)]


@pytest.mark.parametrize('item', [
    GPU, {**GPU, 'address': '0000:81:*'}, {'address': {'bus': '8[12]'}},
    {**QAT, 'resource_class': 'qat', 'traits': 'fast,hot'},
    {**GPU, 'managed': 'no', 'live_migratable': 'yes'},
    {**GPU, 'one_time_use': 'true'}])
def test_entries_of_devices_stay_as_they_are(item):
    planned = _make([item])
    assert _entries(planned) == [item]
    assert planned.losses == ()
    assert spec_entry.parse_all([json.dumps(item)], {})[1] == []


@pytest.mark.parametrize('key', ['physical_network', 'devname', 'trusted',
                                 'remote_managed'])
def test_entries_for_ports_stay_in_nova(key):
    planned = _make([{**QAT, key: 'x'}, GPU])
    assert _entries(planned) == [GPU]
    [loss] = planned.losses
    assert (loss.thing, loss.reason.split()[1].rstrip(',')) == (
        '[pci] device_spec #1', key)
    assert 'leave it in [pci] device_spec' in loss.remedy


@pytest.mark.parametrize('text', ['{', '3', '["x"]', '{"address": "g:1"}',
                                  '{"colour": "green"}'])
def test_unusable_entry_is_named_and_others_stay(text):
    planned = pci.make(pci.Source([text, json.dumps(GPU)], [], []), 'out')
    assert _entries(planned) == [GPU]
    [loss] = planned.losses
    assert loss.thing.startswith('[pci] device_spec #1')


@pytest.mark.parametrize('alias, device_spec, expected', [
    (GPU, [GPU], GPU_CLASS),
    # The entries can be on other hosts.
    (GPU, [], GPU_CLASS),
    (GPU, [{**GPU, 'resource_class': 'big'}], 'CUSTOM_BIG'),
    (GPU, [{'address': '0000:81:00.0', 'resource_class': 'big'}],
     'CUSTOM_BIG'),
    # An entry with the ids tells more than one without.
    (GPU, [{'address': '0000:81:00.0', 'resource_class': 'big'}, GPU],
     GPU_CLASS),
    ({**QAT, 'product_id': '37c9'}, [{**QAT, 'resource_class': 'qat'}, GPU],
     'CUSTOM_QAT'),
    ({'resource_class': 'pgpu'}, [GPU], 'PGPU'),
])
def test_class_is_that_of_the_devices(alias, device_spec, expected):
    group, losses = _group(_named(alias), device_spec)
    assert (group['resources'], losses) == ({expected: 1}, [])


def test_traits_of_an_alias_are_required():
    group, _losses = _group(_named(GPU, traits='fast, CUSTOM_HOT'))
    assert group['traits'] == {'CUSTOM_FAST': 'required',
                               'CUSTOM_HOT': 'required'}


@pytest.mark.parametrize('value, strength', [('yes', 'required'),
                                             ('false', 'forbidden')])
def test_live_migratable_becomes_a_trait(value, strength):
    planned = _make([{**GPU, 'live_migratable': 'on', 'traits': ['HOT']}, QAT],
                    [_named(GPU, live_migratable=value)], [_flavor('gpu:1')])
    [[group]] = _profiles(planned).values()
    assert group['traits'] == {pci.LIVE_MIGRATABLE: strength}
    assert [entry.get('traits') for entry in _entries(planned)] == [
        ['CUSTOM_HOT', pci.LIVE_MIGRATABLE], None]


@pytest.mark.parametrize('policy, specs, numa, loses', [
    (None, {}, None, False),
    (None, NUMA, 'required', False),
    ('legacy', {'hw:cpu_policy': 'dedicated'}, 'required', False),
    ('required', {}, 'required', False),
    ('required', {'hw:mem_page_size': 'large'}, 'required', False),
    ('required', {'hw:numa_nodes': '2'}, 'required', False),
    ('preferred', NUMA, None, False),
    ('socket', NUMA, None, True),
    ('socket', {}, None, False),
    ('required', {**NUMA, 'hw:pci_numa_affinity_policy': 'preferred'}, None,
     False),
    (None, {**NUMA, 'hw:pci_numa_affinity_policy': 'required'}, 'required',
     False),
])
def test_numa_policy(policy, specs, numa, loses):
    alias = _named(GPU, **({'numa_policy': policy} if policy else {}))
    group, losses = _group(alias, **specs)
    assert group.get('numa') == numa
    assert bool(losses) == loses


@pytest.mark.parametrize('nodes, numa', [('1', 'required'), ('2', None)])
def test_devices_on_several_numa_nodes_of_the_guest(nodes, numa):
    planned = _make(alias=[_named(GPU, numa_policy='required')],
                    flavors=[_flavor('gpu:2', hw__numa_nodes=nodes)])
    [[group]] = _profiles(planned).values()
    assert (group.get('numa'), group['count']) == (numa, 2)
    assert bool(planned.losses) == (numa is None)


def test_flavors_that_ask_for_the_same_share_a_profile():
    planned = _make([GPU, QAT], [_named(GPU), _named(QAT, 'my qat')], [
        _flavor('gpu:2, my qat:1', 'a'), _flavor('gpu:2, my qat:1', 'b'),
        _flavor('gpu:2, my qat:1', 'c', hw__numa_nodes='1'),
        plan.Flavor('plain', '4', {})])
    assert {name: [group['resources'] for group in groups]
            for name, groups in _profiles(planned).items()} == {
        name: [{GPU_CLASS: 1}, {'CUSTOM_PCI_8086_37C9': 1}]
        for name in ('gpu-2-my-qat', 'gpu-2-my-qat-2')}
    assert {step.change.flavor.name: step.change.added
            for step in planned.steps if step.change} == {
        'a': {'accel:device_profile': 'gpu-2-my-qat'},
        'b': {'accel:device_profile': 'gpu-2-my-qat'},
        'c': {'accel:device_profile': 'gpu-2-my-qat-2'}}


@pytest.mark.parametrize('text, specs, complaint', [
    ('other:1', {}, 'alias other: is not in [pci] alias'),
    ('gpu', {}, 'is not like "a:2,b:1"'),
    ('gpu:0', {}, 'is not like "a:2,b:1"'),
    ('any:1', {}, f'several resource classes or traits: {GPU_CLASS}, CUSTOM_'),
    ('none:1', {}, 'alias none: has neither vendor_id and product_id nor'),
    ('gpu:1', {'accel__device_profile': 'x'}, 'also have accel:device_prof'),
    ('gpu:1', {f'resources__{GPU_CLASS}': '1'}, 'the flavor itself also asks'),
    ('gpu:300', {}, 'more than 256 groups'),
])
def test_flavor_that_cannot_be_carried_over_is_left(text, specs, complaint):
    planned = _make([GPU, QAT], [
        _named(GPU), _named(GPU, 'any'), _named(QAT, 'any'),
        {'name': 'none', 'vendor_id': '10de'}], [_flavor(text, **specs)])
    [loss] = planned.losses
    assert loss.thing == 'flavor f'
    assert complaint in loss.reason
    assert not any(step.change for step in planned.steps)
    assert _profiles(planned) == {}


@pytest.mark.parametrize('text', ['{', '[]', '{}', '{"name": 3}'])
def test_unusable_alias_is_named(text):
    planned = pci.make(pci.Source([], [text], []), 'out')
    assert [loss.thing for loss in planned.losses] == ['[pci] alias #1']


def test_whole_cards_with_virtual_functions_are_named():
    planned = _make(alias=[_named(GPU, device_type='type-PF')])
    [loss] = planned.losses
    assert 'no virtual functions' in loss.reason


def test_interrupted_change_of_a_flavor_is_continued():
    planned = _make(alias=[_named(GPU)], flavors=[
        _flavor('gpu:1', accel__device_profile='gpu')])
    assert planned.losses == ()
    assert [step.change.removed for step in planned.steps if step.change] == [
        (flavor_specs.ALIAS_KEY,)]


def test_rollback_of_a_flavor_undoes_its_commands():
    planned = _make(alias=[_named(GPU)], flavors=[_flavor('gpu:1', 'a b')])
    [step] = [step for step in planned.steps if step.change]
    assert step.change.removed == (flavor_specs.ALIAS_KEY,)
    assert [shlex.split(line)[2:] for line in step.commands] == [
        ['set', '--property', 'accel:device_profile=gpu', 'a b'],
        ['unset', '--property', flavor_specs.ALIAS_KEY, 'a b']]
    assert [shlex.split(line)[2:] for line in step.rollback] == [
        ['set', '--property', f'{flavor_specs.ALIAS_KEY}=gpu:1', 'a b'],
        ['unset', '--property', 'accel:device_profile', 'a b']]


def test_files_come_before_flavors_and_hosts_between():
    planned = _make(alias=[_named(GPU)], flavors=[_flavor('gpu:1')])
    assert [(bool(step.file), bool(step.change)) for step in planned.steps
            ] == [(True, False)] * 2 + [(False, False)] * 3 + [
        (False, True), (False, False)]
    assert all(step.rollback or not step.is_automatic
               for step in planned.steps)


def test_servers_with_devices_are_listed_and_resized():
    servers = [plan.Server('1', flavor='f'), plan.Server('2', flavor='other'),
               plan.Server('3', flavor='f', extra_specs={}),
               plan.Server('4', flavor='gone',
                           extra_specs={flavor_specs.ALIAS_KEY: 'gpu:1'})]
    planned = _make(alias=[_named(GPU)], flavors=[_flavor('gpu:1')],
                    servers=servers)
    assert [server.uuid for server, _effect in planned.servers] == ['1', '4']
    [step] = [step for step in planned.steps
              if step.title.startswith('Resize')]
    create, *resize = map(shlex.split, step.commands)
    assert create == [
        'openstack', 'flavor', 'create', '--vcpus', '2', '--ram', '1024',
        '--property', 'accel:device_profile=gpu', 'f-accel']
    assert [command[-1] for command in resize] == ['1', '1']
