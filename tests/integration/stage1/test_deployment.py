# SPDX-License-Identifier: Apache-2.0
"""Deployments by Ansible and DevStack instead of the installation guide."""

import json
import pathlib

import pytest
import yaml

from tests.integration import place
from tests.integration import steps
from tests.integration.cloud import cloud as clouds
from tests.integration.cloud import install_guide
from tests.integration.stage1 import outer as machines
from tests.unit import test_devstack

_CONF = pathlib.Path('/etc/nova/nova.conf')
_PYTHON = str(place.BIN / 'python')
_GROUPS = ('nova_scheduler', 'nova_compute', 'nova_api')


@pytest.fixture(autouse=True)
def nova_conf(accelerators, outer):
    """Start without nova_accel in nova.conf; restore the file at the end."""
    before = _CONF.read_text()
    with outer.before_installation():
        yield
        accelerators.delete_all()
        _CONF.write_text(before)


def with_ansible(cloud, directory):
    """Run the playbook."""
    [wheel] = install_guide.COPY.glob('nova_accel-*.whl')
    inventory = directory / 'inventory.yml'
    inventory.write_text(yaml.safe_dump({'all': {
        'children': {group: {'hosts': {'cloud': {}}} for group in _GROUPS},
        'vars': {
            'ansible_connection': 'local', 'ansible_become': False,
            'ansible_python_interpreter': _PYTHON,
            'nova_accel_python': _PYTHON, 'nova_accel_file': str(wheel),
            'nova_accel_device_spec': [json.loads(machines.GPU_ENTRY)],
            'nova_accel_restart': False}}}))
    said = cloud.run(
        'ansible-playbook', '-i', str(inventory),
        str(place.ROOT / 'contrib/ansible/nova_accel.yml'))
    assert 'failed=0' in said


def with_devstack(cloud, _directory):
    """Run the plugin's post-config phase as DevStack does."""
    steps.run('bash', '-c', test_devstack.script('stack post-config'), env={
        **clouds.environment(), 'PYTHON': _PYTHON,
        'DEST': '/opt/stack', 'NOVA_CONF': str(_CONF),
        'SERVICES': 'n-api n-cpu n-sch',
        'NOVA_ACCEL_PROFILE_DIR': str(cloud.profiles),
        'NOVA_ACCEL_DEVICE_SPEC': machines.GPU_ENTRY})


@pytest.mark.parametrize('configure', [with_ansible, with_devstack])
def test_server_gets_its_devices(cloud, accelerators, tmp_path, configure):
    configure(cloud, tmp_path)
    cloud.restart('nova-api', 'nova-scheduler', 'nova-compute')
    server = accelerators.boot(accelerators.of_gpus(2))
    accelerators.check(server, machines.GPU, machines.GPU)
