# SPDX-License-Identifier: Apache-2.0
"""The commands nova-accel and nova-status on the compute node."""

import json

import pytest

from tests.integration import steps
from tests.integration.stage1 import outer as machines

GPU = machines.GPU


def test_host_show(cloud, outer, accelerators):
    shown = json.loads(cloud.run(
        'nova-accel', '-q', 'host', 'show', '-f', 'json'))
    assert {f'cloud_accel_{device["address"]}'
            for device in shown['devices']} == {
        name for name in accelerators.inventories() if ':' in name}


def test_profile_check(cloud, accelerators):
    accelerators.profile('good', groups=[{'resources': {GPU: 1}}])
    cloud.run('nova-accel', 'profile', 'check')
    bad = cloud.profiles / 'bad.yaml'
    bad.write_text('name: bad\ngroups: [{resources: {GPU: 1}}]\n')
    try:
        with pytest.raises(steps.Failure, match='bad.yaml.*GPU'):
            cloud.run('nova-accel', 'profile', 'check')
    finally:
        bad.unlink()


def test_host_check_reports_device_without_allocation(cloud, accelerators):
    server = accelerators.boot(accelerators.of_gpus(1))
    assert accelerators.findings() == []
    [address] = accelerators.devices(server)
    answer = cloud.connection.placement.delete(f'/allocations/{server.id}')
    assert answer.status_code == 204
    found = str(accelerators.findings())
    assert f'cloud_accel_{address}' in found
    assert server.id in found
    accelerators.delete(server)
    # nova-compute may have noticed the inconsistency and reserved the device.
    steps.wait('a comparison that finds nothing', lambda: all(
        accelerators.inventories()[f'cloud_accel_{address}'].values()))


def test_upgrade_check(cloud, outer):
    # 1 means warnings, here about the missing Cinder. 2 would be a failure.
    with pytest.raises(steps.Failure, match='check ended with 1: '):
        cloud.run('nova-status', 'upgrade', 'check')
