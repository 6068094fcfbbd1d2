# SPDX-License-Identifier: Apache-2.0
"""The command nova-accel, and Nova's own, on this compute node."""

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


def test_host_check_names_who_has_what_nobody_promised(cloud, accelerators):
    server = accelerators.boot(accelerators.of_gpus(1))
    assert accelerators.findings() == []
    [address] = accelerators.devices(server)
    answer = cloud.connection.placement.delete(f'/allocations/{server.id}')
    assert answer.status_code == 204
    found = str(accelerators.findings())
    assert f'cloud_accel_{address}' in found
    assert server.id in found
    accelerators.delete(server)
    # nova-compute can have seen it, and have reserved what is held.
    steps.wait('a comparison that finds nothing', lambda: all(
        accelerators.inventories()[f'cloud_accel_{address}'].values()))


def test_upgrade_check(cloud, outer):
    # Warnings, of Cinder, which is not there; with a failure it were 2.
    with pytest.raises(steps.Failure, match='check ended with 1: '):
        cloud.run('nova-status', 'upgrade', 'check')
