# SPDX-License-Identifier: Apache-2.0
"""``nova-accel migrate``, with files and with simulated APIs."""

import json

from keystoneauth1 import fixture
import pytest
import requests
import requests_mock

from nova_accel.profiles import store

KEYSTONE, NOVA, CYBORG = (f'http://{name}.test/{version}'
                          for name, version in (
                              ('keystone', 'v3'), ('nova', 'v2.1'),
                              ('cyborg', 'v2')))
SERVER = '0a6f4c7e-4a86-4f5e-8f0f-1d3fb0c4d2a1'
ARQ = '5518a925-1c2c-49a2-a8bf-0927d9456f3e'

CONF = """
[pci]
device_spec = {"vendor_id": "10de", "product_id": "2330"}
alias = {"name": "gpu", "vendor_id": "10de", "product_id": "2330"}
"""
ALIAS = {'pci_passthrough:alias': 'gpu:2'}
FLAVORS = [{'ID': '7', 'Name': 'gpu.pair', 'RAM': 1024, 'Disk': 4,
            'Ephemeral': 0, 'VCPUs': 2, 'Is Public': False, 'Swap': 0,
            'RXTX Factor': 1.0, 'Properties': ALIAS}]
SERVERS = [{'ID': SERVER, 'Name': 'trainer', 'Status': 'ACTIVE',
            'Flavor': 'gpu.pair', 'Host': 'compute1'}]
PROFILES = [{'uuid': ARQ, 'name': 'gpu', 'description': None, 'groups': [
    {'resources:PGPU': '1', 'trait:CUSTOM_NVIDIA_2330': 'required'}]}]
ARQS = [{'uuid': ARQ, 'state': 'Bound', 'device_profile_name': 'gpu',
         'instance_uuid': SERVER, 'hostname': 'compute1'}]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The directory in which the command runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def files(folder):
    """Write files, and return the options that name them."""
    def write(**contents):
        options = []
        for name, content in contents.items():
            (folder / f'{name}.json').write_text(json.dumps(content))
            options += [f'--{name}', f'{name}.json']
        return options
    return write


@pytest.fixture
def migrate(run, files):
    """Call ``migrate pci`` with files."""
    options = files(flavors=FLAVORS, servers=SERVERS)
    return lambda *more, conf=CONF: run('migrate', 'pci', *options, *more,
                                        conf=conf)


def test_plan_lists_steps_and_changes_nothing(migrate, folder):
    before = sorted(folder.iterdir())
    code, out, err = migrate()
    assert (code, err) == (0, '')
    assert sorted(folder.iterdir()) == before
    numbered = [line for line in out.splitlines()
                if line.partition('.')[0].isdecimal()]
    assert numbered[:2] == [
        '1. Write nova-accel-migration/gpu-2.yaml (--apply)',
        '2. Write nova-accel-migration/nova_accel.conf (--apply)']
    assert '6. Change flavor gpu.pair (--apply)' in numbered
    assert ('   $ openstack flavor create --private --vcpus 2 --ram 1024 '
            '--disk 4 ') in out
    assert f'- trainer ({SERVER}), host compute1: keeps its devices' in out


def test_apply_stops_before_the_first_manual_step(migrate, folder):
    code, out, err = migrate('--apply', '--directory', 'new/plan/')
    assert (code, out.count('(done)')) == (0, 2)
    assert err == ('nova-accel: step 3 is not automatic; do it, then continue '
                   'with --apply --from 4\n')
    assert {path.name for path in (folder / 'new/plan').iterdir()} == {
        'gpu-2.yaml', 'nova_accel.conf'}
    assert migrate('--apply', '--directory', 'new/plan') == (0, out, err)
    profiles = store.Store([str(folder / 'new/plan')])
    assert [profile.name for profile in profiles.all()] == ['gpu-2']
    assert profiles.problems() == ()


def test_written_entries_are_part_of_nova_conf(migrate, run, folder):
    assert migrate('--apply')[0] == 0
    conf = (folder / 'nova-accel-migration/nova_accel.conf').read_text()
    recording = f'{folder}/machine.json'
    (folder / 'machine.json').write_text(json.dumps({
        'nova_accel_recording': 1, 'files': {}, 'links': {}, 'folders': []}))
    _code, _out, err = run('host', 'show', '--sysfs-root', recording,
                           conf=conf)
    assert '[nova_accel] device_spec #1: names no device of this host' in err


def test_apply_does_not_overwrite_a_file(migrate, folder):
    migrate('--apply')
    path = folder / 'nova-accel-migration/gpu-2.yaml'
    path.write_text('mine')
    code, out, err = migrate('--apply')
    assert (code, out) == (1, '')
    assert 'exists, and has another content' in err
    assert path.read_text() == 'mine'


def test_flavors_in_a_file_are_not_changed(migrate):
    code, out, err = migrate('--apply', '--from', '6')
    assert (code, out) == (1, '')
    assert '--flavors: a file cannot be changed' in err


def test_json_has_steps_losses_and_servers(migrate):
    conf = CONF + 'device_spec = {"devname": "eth0"}\n'
    code, out, _err = migrate('-f', 'json', conf=conf)
    data = json.loads(out)
    assert code == 1
    assert [loss['thing'] for loss in data['not_carried_over']] == [
        '[pci] device_spec #2']
    [server] = data['servers']
    assert (server['uuid'], server['host']) == (SERVER, 'compute1')
    [change] = [step['flavor'] for step in data['steps'] if step['flavor']]
    assert change == {'id': '7', 'name': 'gpu.pair', 'set': {
        'accel:device_profile': 'gpu-2'}, 'unset': [*ALIAS]}
    assert [step['number'] for step in data['steps'] if step['automatic']
            ] == [1, 2, 6]
    _code, out, _err = migrate('-c', 'not_carried_over', conf=conf)
    assert out.splitlines()[1] == 'Not carried over:'


def test_without_options_of_pci_there_is_nothing_to_migrate(migrate):
    code, out, err = migrate(conf='')
    assert (code, out) == (1, '')
    assert err.startswith('nova-accel: [pci]: has neither device_spec nor al')


def test_plan_without_device_spec_warns(migrate):
    code, out, err = migrate(conf='[pci]\n' + CONF.splitlines()[-1])
    assert (code, err.count('\n')) == (0, 1)
    assert '[pci] device_spec is not set here' in err
    assert 'CUSTOM_PCI_10DE_2330: 1' in out


@pytest.mark.parametrize('content, complaint', [
    ('[{"uuid": "1"}]', 'has no "name"'),
    ('{', 'Expecting'), ('3', 'is not a list'), ('["x"]', 'is not a list'),
    ('[{"ID": "1", "Name": "a"}]', "flavor 'a': has no extra specs here"),
    ('[{"ID": "1", "Name": "a", "Properties": "b=1"}]', 'has no extra specs')])
def test_unusable_file_is_an_error(run, folder, content, complaint):
    (folder / 'flavors.json').write_text(content)
    code, out, err = run('migrate', 'pci', '--flavors', 'flavors.json',
                         conf=CONF)
    assert (code, out, err.count('\n')) == (1, '', 1)
    assert complaint in err


def test_cyborg_from_files(run, files, folder):
    options = files(
        flavors=[{**FLAVORS[0], 'Properties': {
            'accel:device_profile': 'gpu'}}],
        servers=SERVERS, arqs=ARQS, profiles={'device_profiles': [
            *PROFILES, {'name': 'bad', 'groups': [{'resources:GPU': 1}]}]})
    code, out, _err = run('migrate', 'cyborg', '--apply', *options)
    assert code == 1
    assert "! profile 'bad' in Cyborg.json, group 0: resources 'GPU'" in out
    assert f'- trainer ({SERVER}), host compute1: keeps the dev' in out
    [profile] = store.Store([str(folder / 'nova-accel-migration')]).all()
    assert (profile.name, profile.groups[0].resources) == (
        'gpu', {'PGPU': 1})
    assert '"product_id": "2330", "resource_class": "PGPU"' in (
        folder / 'nova-accel-migration/nova_accel.conf').read_text()


class Cloud:
    """Keystone, Nova and Cyborg."""

    def __init__(self, mock):
        self.mock = mock
        token = fixture.V3Token()
        token.set_project_scope()
        for service, url in ('compute', NOVA), ('accelerator', CYBORG):
            token.add_service(service).add_standard_endpoints(
                public=url, region='RegionOne')
        mock.get(KEYSTONE, json={'version': fixture.V3Discovery(KEYSTONE)})
        mock.post(f'{KEYSTONE}/auth/tokens', json=token,
                  headers={'X-Subject-Token': 'a token'})
        mock.get(NOVA, json={'version': {
            'id': 'v2.1', 'status': 'CURRENT', 'version': '2.96',
            'min_version': '2.1',
            'links': [{'rel': 'self', 'href': NOVA}]}})
        mock.get(CYBORG, json={'version': {
            'id': 'v2.0', 'status': 'CURRENT', 'max_version': '2.3',
            'min_version': '2.0',
            'links': [{'rel': 'self', 'href': CYBORG}]}})
        mock.get(f'{NOVA}/flavors/detail', json={'flavors': [{
            'id': '7', 'name': 'gpu.pair', 'vcpus': 2, 'ram': 1024, 'disk': 4,
            'extra_specs': ALIAS}]})
        mock.get(f'{NOVA}/servers/detail', json={'servers': [{
            'id': SERVER, 'name': 'trainer',
            'OS-EXT-SRV-ATTR:host': 'compute1',
            'flavor': {'original_name': 'gpu.pair', 'extra_specs': ALIAS}}]})
        mock.get(f'{CYBORG}/device_profiles',
                 json={'device_profiles': PROFILES})
        mock.get(f'{CYBORG}/accelerator_requests', json={'arqs': ARQS})

    def asked(self, method):
        return [request for request in self.mock.request_history
                if request.method == method and KEYSTONE not in request.url]


@pytest.fixture
def cloud(monkeypatch, folder):
    for name, value in {
            'HOME': str(folder), 'OS_AUTH_URL': KEYSTONE,
            'OS_USERNAME': 'admin', 'OS_PASSWORD': 'secret',
            'OS_PROJECT_NAME': 'admin', 'OS_USER_DOMAIN_ID': 'default',
            'OS_PROJECT_DOMAIN_ID': 'default', 'OS_REGION_NAME': 'RegionOne',
            }.items():
        monkeypatch.setenv(name, value)
    with requests_mock.Mocker() as mock:
        yield Cloud(mock)


def test_plan_from_the_api_equals_plan_from_files(run, cloud, files):
    options = files(flavors=[{**FLAVORS[0], 'Is Public': True}],
                    servers=SERVERS)
    code, out, err = run('migrate', 'pci', conf=CONF)
    assert (code, out, err) == run('migrate', 'pci', *options, conf=CONF)
    asked = [request.qs for request in cloud.asked('GET')
             if 'detail' in request.url]
    assert asked == [{'is_public': ['none']}, {'all_tenants': ['true']}]
    assert cloud.asked('POST') == []


def test_apply_changes_flavors_from_a_step_on(run, cloud):
    url = f'{NOVA}/flavors/7/os-extra_specs'
    cloud.mock.post(url, json={'extra_specs': {}})
    cloud.mock.delete(f'{url}/pci_passthrough:alias', status_code=200)
    code, out, err = run('migrate', 'pci', '--apply', '--from', '6', conf=CONF)
    assert (code, 'step 7 is not automatic' in err) == (0, True)
    assert '6. Change flavor gpu.pair (done)' in out
    [added] = cloud.asked('POST')
    assert added.json() == {'extra_specs': {'accel:device_profile': 'gpu-2'}}
    [removed] = cloud.asked('DELETE')
    assert removed.url == f'{url}/pci_passthrough:alias'


def test_cyborg_from_the_apis(run, cloud, files):
    code, out, err = run('migrate', 'cyborg')
    assert (code, err) == (0, '')
    assert (code, out, err) == run('migrate', 'cyborg', *files(
        profiles=PROFILES, arqs=ARQS))


def test_unreachable_cloud_is_an_error(run, cloud):
    cloud.mock.get(f'{NOVA}/flavors/detail',
                   exc=requests.ConnectionError('no route'))
    code, out, err = run('migrate', 'pci', conf=CONF)
    assert (code, out, err.count('\n')) == (1, '', 1)
    assert err.startswith('nova-accel: the cloud: cannot be queried')


def test_missing_credentials_are_an_error(run, folder, monkeypatch):
    monkeypatch.setenv('HOME', str(folder))
    code, out, err = run('migrate', 'pci', conf=CONF)
    assert (code, out, err.count('\n')) == (1, '', 1)
    assert 'or name files' in err


@pytest.fixture
def migrate_class(run, files, folder):
    """Call ``migrate class`` with files."""
    (folder / 'profiles').mkdir()
    (folder / 'profiles' / 'gpu.yaml').write_text(
        'name: gpu\ngroups: [{resources: {CUSTOM_H100: 1}}]\n---\n'
        'name: nic\ngroups: [{resources: {CUSTOM_NIC: 1}}]\n')
    (folder / 'profiles' / 'one.json').write_text(json.dumps(
        {'name': 'one', 'groups': [{'resources:CUSTOM_A100': '1'}]}))
    (folder / 'profiles' / 'nic.yaml').write_text(
        'name: n\ngroups: [{resources: {CUSTOM_NIC: 1}}]\n')
    options = files(flavors=FLAVORS, servers=SERVERS)
    return lambda *more, to='CUSTOM_GPU': run(
        'migrate', 'class', '--to', to, 'CUSTOM_H100', 'CUSTOM_A100',
        *options, *more, conf='[nova_accel]\n'
        'device_spec = {"product_id": "2330", "resource_class": "h100"}\n'
        f'profile_dirs = {folder / "profiles"}\n')


def test_profiles_of_all_forms_get_one_class(migrate_class, folder):
    assert migrate_class('--apply')[0] == 0
    written = folder / 'nova-accel-migration'
    assert sorted(path.name for path in written.iterdir()) == [
        'gpu.yaml', 'nova_accel.conf', 'one.json']
    assert {profile.name: [(dict(group.resources), dict(group.traits))
                           for group in profile.groups]
            for profile in store.Store([str(written)]).all()} == {
        'gpu': [({'CUSTOM_GPU': 1}, {'CUSTOM_H100': 'required'})],
        'nic': [({'CUSTOM_NIC': 1}, {})],
        'one': [({'CUSTOM_GPU': 1}, {'CUSTOM_A100': 'required'})]}
    assert migrate_class('--apply')[0] == 0


def test_profile_and_classes_that_cannot_be_moved(migrate_class, folder):
    for name, text in {
            'bad': '[', 'list': 'name: l\ngroups: [{resources: {CUSTOM_H100: '
            '1}, traits: [CUSTOM_X]}]\n'}.items():
        (folder / 'profiles' / f'{name}.yaml').write_text(text)
    (folder / 'profiles' / 'folder.yaml').mkdir()
    (folder / 'profiles' / 'not.yaml').write_text(
        'name: x\ngroups: [{resources: {CUSTOM_H100: 1}, '
        'traits: {CUSTOM_H100: forbidden}}]\n')
    code, out, _err = migrate_class()
    assert code == 1
    for name in ('bad', 'not', 'list', 'folder'):
        path = f'{folder}/profiles/{name}.yaml'
        assert f'! {path}: is not changed: ' in out
        assert out.count(path) == 1
    assert out.count('write a profile for both') == 1
    code, _out, err = migrate_class(to='CUSTOM_A100')
    assert code == 1
    assert 'CUSTOM_A100 is moved itself' in err
