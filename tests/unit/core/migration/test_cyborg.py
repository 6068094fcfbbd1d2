# SPDX-License-Identifier: Apache-2.0
"""From Cyborg's device profiles and ARQs to entries and profiles."""

import json

import pytest

from nova_accel.core.migration import cyborg
from nova_accel.core.migration import plan
from nova_accel.core.request import device_profile

BITSTREAM = 'a6a12670-7014-4cff-a563-cea949b57fb3'
GPU = {'resources:PGPU': '1', 'trait:CUSTOM_NVIDIA_2335': 'required'}


def _profile(*groups, name='gpu', **document):
    return device_profile.parse(
        {'name': name, 'groups': list(groups), **document}, 'Cyborg')


def _make(profiles=(), flavors=(), requests=(), servers=()):
    return cyborg.make(cyborg.Source(profiles, (), flavors, requests,
                                     servers), 'out')


def _entries(planned):
    texts = [step.file.content for step in planned.steps
             if step.file and isinstance(step.file.content, str)]
    return [json.loads(line.removeprefix('device_spec = '))
            for text in texts for line in text.splitlines()[1:]]


@pytest.mark.parametrize('profile', [
    _profile(GPU), _profile(GPU, GPU, {'resources:FPGA': 2}, GPU),
    _profile({'resources:FPGA': '1', 'accel:bitstream_id': BITSTREAM,
              'trait:CUSTOM_X': 'forbidden'}, description='One FPGA'),
    _profile({'resources:FPGA': '1', 'accel:function_id': BITSTREAM}),
    _profile(GPU, GPU, group_policy='isolate')])
def test_profile_asks_for_the_same_in_our_format(profile):
    written = cyborg.document(profile)
    assert device_profile.parse(written, 'ours') == profile
    assert not device_profile.is_cyborg_document(written['groups'])


@pytest.mark.parametrize('resource_class, traits, expected', [
    ('PGPU', ['CUSTOM_NVIDIA_2335'], {
        'vendor_id': '10de', 'product_id': '2335', 'resource_class': 'PGPU',
        'traits': ['CUSTOM_NVIDIA_2335']}),
    ('FPGA', ['CUSTOM_FPGA_INTEL_PAC_ARRIA10', 'CUSTOM_FPGA_INTEL'], {
        'vendor_id': '8086', 'product_id': '09c4', 'resource_class': 'FPGA',
        'kind': 'fpga'}),
    ('FPGA', ['CUSTOM_FPGA_XILINX', 'CUSTOM_FPGA_PRODUCT_ID_500C'], {
        'vendor_id': '10ee', 'product_id': '500c', 'resource_class': 'FPGA',
        'traits': ['CUSTOM_FPGA_PRODUCT_ID_500C', 'CUSTOM_FPGA_XILINX']}),
    ('FPGA', ['CUSTOM_FPGA_INSPUR', 'CUSTOM_FPGA_PRODUCT_ID_500C'], {
        'vendor_id': '1bd4', 'product_id': '500c', 'resource_class': 'FPGA',
        'traits': ['CUSTOM_FPGA_INSPUR', 'CUSTOM_FPGA_PRODUCT_ID_500C']}),
    ('CUSTOM_QAT', [], {
        'vendor_id': '8086', 'product_id': '37c9',
        'resource_class': 'CUSTOM_QAT'}),
    ('CUSTOM_SSD', ['CUSTOM_SSD_PRODUCT_ID_1001'], {
        'vendor_id': '1bd4', 'product_id': '1001', 'one_time_use': 'yes',
        'resource_class': 'CUSTOM_SSD',
        'traits': ['CUSTOM_SSD_PRODUCT_ID_1001']}),
    ('CUSTOM_PCI', ['CUSTOM_PCI_PRODUCT_ID_2335', 'CUSTOM_PCI_NVIDIA'], {
        'vendor_id': '10de', 'product_id': '2335',
        'resource_class': 'CUSTOM_PCI',
        'traits': ['CUSTOM_PCI_NVIDIA', 'CUSTOM_PCI_PRODUCT_ID_2335']}),
    ('VGPU', ['CUSTOM_NVIDIA_1EB8_T4_2B'], None),
    ('PGPU', ['CUSTOM_NVIDIA_1EB8_T4_2B'], None),
    ('PGPU', [], None),
    # Nothing tells the vendor.
    ('CUSTOM_PCI', ['CUSTOM_PCI_PRODUCT_ID_1001'], None),
    ('CUSTOM_NIC', ['CUSTOM_VF'], None),
])
def test_entry_is_worked_out_from_class_and_traits(resource_class, traits,
                                                   expected):
    planned = _make([_profile({f'resources:{resource_class}': 1, **{
        f'trait:{trait}': 'required' for trait in traits}})])
    assert _entries(planned) == ([expected] if expected else [])
    assert len(planned.losses) == (expected is None)
    for loss in planned.losses:
        assert loss.thing == "device profile 'gpu', group 0"
        assert all(trait in loss.remedy for trait in traits)


def test_entry_of_equal_devices_has_the_traits_of_all_groups():
    planned = _make([_profile(GPU), _profile(
        {**GPU, 'trait:CUSTOM_HOT': 'required',
         'trait:CUSTOM_OLD': 'forbidden'}, name='hot')])
    [entry] = _entries(planned)
    assert entry['traits'] == ['CUSTOM_HOT', 'CUSTOM_NVIDIA_2335']


def test_flavors_stay_and_unknown_profiles_are_named():
    flavors = [plan.Flavor(name, name, {'accel:device_profile': profile})
               for name, profile in (('a', 'gpu'), ('b', 'lost'))]
    planned = _make([_profile(GPU)], [*flavors, plan.Flavor('c', 'c', {})])
    [loss] = planned.losses
    assert (loss.thing, "'lost'" in loss.reason) == ('flavor b', True)
    assert not any(step.change for step in planned.steps)
    [step] = [step for step in planned.steps if 'new servers' in step.title]
    assert 'the flavors a get' in step.title
    assert step.commands[0] == 'cp out/gpu.yaml /etc/nova/device_profiles.d'
    assert step.rollback == ('rm /etc/nova/device_profiles.d/gpu.yaml',)


def test_servers_with_arqs_are_listed_and_arqs_are_deleted():
    requests = [cyborg.Request('r1', 'gpu', 's1', 'h1'),
                cyborg.Request('r2', 'gpu', 's1', 'h1'),
                cyborg.Request('r3', 'gpu', 's2', 'h2'),
                cyborg.Request('r4', 'gpu')]
    planned = _make([_profile(GPU)], requests=requests, servers=[
        plan.Server('s1', 'my trainer', 'f', host='compute')])
    assert [(server.name, server.host, effect.partition('.')[0])
            for server, effect in planned.servers] == [
        ('my trainer', 'compute', 'keeps the devices of ARQ r1, r2'),
        ('', 'h2', 'keeps the devices of ARQ r3')]
    assert planned.steps[-1].commands == tuple(
        f'openstack accelerator arq delete r{number}'
        for number in (1, 2, 3, 4))
