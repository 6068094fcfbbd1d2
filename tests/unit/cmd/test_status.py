# SPDX-License-Identifier: Apache-2.0
"""``nova-accel-status upgrade check``, with the real oslo.upgradecheck.

Placement is simulated below the real keystoneauth1. The tests write the
package metadata from which the command reads the version of Nova.
"""

import json
import pathlib
import re
import subprocess
import sys
from urllib import parse

import pytest
import requests
import requests_mock

from nova_accel import novas
from nova_accel.cmd import status
from nova_accel.core import naming
from nova_accel.core.placement import providers
from tests.unit import build
from tests.unit.cmd import services

SUCCESS, WARNING, FAILURE = range(3)
CHECKS = ('nova-scheduler', 'nova-compute', 'Isolation', 'Device profiles',
          'Compute nodes in Placement', 'Options', 'Versions')

FILTER = 'nova_accel.scheduler.filter.AcceleratorFilter'
WEIGHER = 'nova_accel.scheduler.weigher.AcceleratorWeigher'
SCHEDULER = f"""
[filter_scheduler]
available_filters = nova.scheduler.filters.all_filters
available_filters = {FILTER}
enabled_filters = ComputeFilter, PciPassthroughFilter, AcceleratorFilter
weight_classes = nova.scheduler.weights.all_weighers,{WEIGHER}
"""

COMPUTE = f"""
[DEFAULT]
compute_driver = accel.LibvirtDriver
[nova_accel]
sysfs_root = {build.DATA}/hosts/l1-8gpu.json
device_spec = {{"vendor_id": "10de", "product_id": "2330"}}
"""

PROFILE = """
name: gpu
description: One GPU
groups:
- resources: {CUSTOM_GPU: 1}
"""
CYBORGS = {'device_profiles': [{
    'name': 'gpu', 'description': 'One GPU', 'uuid': build.ROOT,
    'groups': [{'resources:CUSTOM_GPU': '1'}]}]}

IDS = 'CUSTOM_NOVA_ACCEL_PCI_10DE_2330'
GPU = '0000:43:00.0'
PLACEMENT = CHECKS[4]


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Return a function that writes the metadata of a Python package.

    Metadata of a tested Nova and Placement is already written.
    """
    folder = tmp_path / 'site-packages'
    monkeypatch.syspath_prepend(folder)

    def install(name, version):
        info = folder / f'{name.replace("-", "_")}-0.dist-info'
        info.mkdir(parents=True, exist_ok=True)
        (info / 'METADATA').write_text(
            f'Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n')
    install('nova', f'{novas.TESTED[-1]}.0.0')
    install('openstack-placement',
            f'{novas.TESTED[-1] - novas.PLACEMENT_OFFSET}.0.0')
    return install


@pytest.fixture
def run(capsys, tmp_path, installed):
    """Call the command; return its exit code, stdout and stderr."""
    def call(conf='', *arguments):
        path = tmp_path / 'nova.conf'
        path.write_text(conf)
        code = status.main(['--config-file', str(path), 'upgrade', 'check',
                            *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err
    return call


@pytest.fixture
def check(run):
    """Call the command; return the result and the details of one check.

    All other checks succeed, so its result is the exit code.
    """
    def call(name, conf):
        code, out, err = run(conf, '--json')
        assert err == ''
        results = {found['check']: (found['result'], found['details'])
                   for found in json.loads(out)['checks']}
        assert tuple(results) == CHECKS
        assert code == results[name][0]
        return results[name]
    return call


class Placement(services.Services):
    """Placement with compute nodes, whose names are their uuids."""

    def __init__(self, mock):
        super().__init__(mock)
        self.providers, self.most_candidates = [], None
        mock.get(re.compile(services.PLACEMENT + '/.+'), json=self._answer)

    def add(self, host, *traits, marked=True, name=f'_accel_{GPU}'):
        """Add a compute node, and a device with these traits below it."""
        self.providers += [
            _provider(host, host, None, [], [naming.HOST_CLASS] * marked),
            _provider(f'{host}/device', f'{host}{name}', host,
                      [*naming.OUR_TRAITS, *traits], ['CUSTOM_UNIT_OF_GPU'])]

    def _answer(self, request, context):
        path, _mark, query = request.url.removeprefix(
            services.PLACEMENT).partition('?')
        asked = dict(parse.parse_qsl(query))
        match path.split('/')[1:]:
            case ['traits']:
                [name] = re.findall('in:(.+)', asked['name'])
                return {'traits': sorted(self._traits() & {name})}
            case ['resource_classes']:
                return {'resource_classes': [{'name': name}
                                             for name in self._classes()]}
            case ['resource_providers', *uuid, 'traits']:
                [found] = self._find(uuid='/'.join(uuid))
                return {'traits': found['traits']}
            case ['resource_providers']:
                return {'resource_providers': self._checked(asked, context)}
            case ['allocation_candidates']:
                roots = [provider['uuid'] for provider in self._checked(
                    asked, context)][:self.most_candidates]
                return {'provider_summaries': {
                    provider['uuid']: {'traits': provider['traits']}
                    for provider in self.providers
                    if provider['root_provider_uuid'] in roots}}

    def _classes(self):
        return {name for provider in self.providers
                for name in provider['classes']}

    def _traits(self):
        return {name for provider in self.providers
                for name in provider['traits']}

    def _checked(self, asked, context):
        """Return the providers that a query finds.

        Placement refuses a query for a class or trait that does not exist.
        """
        if not {asked.get('resources', '').removesuffix(':1'),
                asked.get('required', '')} - {''} <= {
                *self._classes(), *self._traits()}:
            context.status_code = 400
        return self._find(**asked)

    def _find(self, uuid='', required='', resources=''):
        return [provider for provider in self.providers
                if uuid in ('', provider['uuid'])
                and required in ('', *provider['traits'])
                and resources.removesuffix(':1') in (
                    '', *provider['classes'])]


def _provider(uuid, name, parent, traits, classes, root=None):
    return {'uuid': uuid, 'name': name, 'parent_provider_uuid': parent,
            'root_provider_uuid': root or parent or uuid, 'traits': traits,
            'classes': classes}


@pytest.fixture
def placement():
    with requests_mock.Mocker() as mock:
        yield Placement(mock)


def test_checks_of_other_services_are_skipped(run):
    code, out, err = run()
    assert (code, err) == (SUCCESS, '')
    assert re.findall('Check: (.*?) *\\|', out) == [*CHECKS]
    assert out.count('Result: Success') == len(CHECKS)
    assert out.count('Details: not configured here: ') == 5


def test_host_with_all_services_succeeds(run, placement, tmp_path):
    (tmp_path / 'gpu.yaml').write_text(PROFILE)
    placement.add('compute1', IDS)
    code, out, _err = run(COMPUTE + f'profile_dirs = {tmp_path}\n' + SCHEDULER
                          + services.CONF)
    assert code == SUCCESS
    assert 'not configured here' not in out


def test_worst_result_is_the_exit_code(run):
    warning = SCHEDULER.replace('weight_classes', '#')
    assert run(warning)[0] == WARNING
    assert run(warning + '[nova_accel]\ndevice_spec = {}\n')[0] == FAILURE


@pytest.mark.parametrize('old, new, result, words', [
    (f'available_filters = {FILTER}', '', FAILURE,
     f'available_filters: does not have {FILTER}; '),
    (', AcceleratorFilter', '', FAILURE,
     'enabled_filters: does not have AcceleratorFilter, '),
    ('AcceleratorFilter\nw', 'AcceleratorFilter,NUMATopologyFilter\nw',
     WARNING, 'enabled_filters: has NUMATopologyFilter after Accel'),
    (f',{WEIGHER}', '', WARNING, f'weight_classes: does not have {WEIGHER}'),
    ('weight_classes', '#', WARNING, f'does not have {WEIGHER}')])
def test_incomplete_scheduler_is_found(check, old, new, result, words):
    assert old in SCHEDULER
    found, details = check('nova-scheduler', SCHEDULER.replace(old, new))
    assert found == result
    assert words in details
    assert details.count(';') == 1


@pytest.mark.parametrize('old, new, words', [
    ('accel.LibvirtDriver', 'libvirt.LibvirtDriver',
     '[DEFAULT] compute_driver: is libvirt.LibvirtDriver, so'),
    ('compute_driver', '#', '[DEFAULT] compute_driver: is not set'),
    ('device_spec =', 'device_spec = {"colour": 1}\ndevice_spec =',
     "[nova_accel] device_spec #1: does not know the key 'colour'"),
    ('l1-8gpu', 'nothing', 'sysfs_root')])
def test_unusable_compute_options_fail(check, old, new, words):
    result, details = check('nova-compute', COMPUTE.replace(old, new))
    assert result == FAILURE
    assert words in details


def test_devices_that_cannot_be_read_fail(check, monkeypatch):
    def refuse(*_arguments, **_more):
        raise PermissionError(13, 'Permission denied', '/sys')
    monkeypatch.setattr('nova_accel.host.reader.read', refuse)
    assert check('nova-compute', COMPUTE) == (
        FAILURE, "[Errno 13] Permission denied: '/sys'")


def test_driver_without_entries_is_checked(check):
    assert check('nova-compute', COMPUTE.replace('device_spec', '#')) == (
        SUCCESS, 'device_spec has 0 entries')


@pytest.mark.parametrize('claim, devices', [
    ('{"address": "0000:43:00.0"}', 'device 0000:43:00.0: '),
    ('{"product_id": "2330"}', 'devices 0000:43:00.0, 0000:44:00.0, '
     '0000:48:00.0, 0000:49:00.0, 0000:83:00.0 and 3 more: ')])
def test_devices_that_nova_claims_too_are_a_warning(check, claim, devices):
    result, details = check('nova-compute',
                            COMPUTE + f'[pci]\ndevice_spec = {claim}\n')
    assert result == WARNING
    assert details == (
        f'{devices}claimed by [pci] device_spec #1 and by [nova_accel] '
        'device_spec #1, so not offered by nova_accel; name each device in '
        'one of the two')


@pytest.mark.parametrize('entry, claim, devices', [
    ('"product_id": "37c9"', '[pci]\ndevice_spec = {"product_id": "37c9"}',
     'devices 0000:85:01.0, 0000:85:01.1: claimed by [pci] device_spec #1 '),
    # Nova claims the card. The entry names only its VFs.
    ('"product_id": "37c9"', '[pci]\ndevice_spec = {"product_id": "37c8"}',
     'devices 0000:85:01.0, 0000:85:01.1: claimed by [pci] device_spec #1 '),
    # The entry names the card. Nova claims one of its VFs.
    ('"product_id": "37c8", "num_vfs": 2',
     '[pci]\ndevice_spec = {"address": "0000:85:01.1"}',
     'device 0000:85:01.1: claimed by [pci] device_spec #1 '),
    ('"address": "0000:44:00.*"',
     '[devices]\nenabled_mdev_types = nvidia-468\n[mdev_nvidia-468]\n'
     'device_addresses = 0000:44:00.4',
     'device 0000:44:00.4: claimed by [devices] enabled_mdev_types ')])
def test_claims_of_virtual_functions_are_a_warning(
        check, entry, claim, devices):
    compute = COMPUTE.replace('l1-8gpu', 'l1').replace(
        '"vendor_id": "10de", "product_id": "2330"', entry)
    assert check('nova-compute', compute)[0] == SUCCESS
    result, details = check('nova-compute', f'{compute}{claim}\n')
    assert result == WARNING
    assert details.startswith(devices)


@pytest.fixture
def profiles(tmp_path):
    folder = tmp_path / 'profiles'
    folder.mkdir()
    return folder


def test_digest_is_of_the_content(check, profiles, monkeypatch):
    conf = f'[nova_accel]\nprofile_dirs = {profiles}\n'

    def digest(text, name='gpu.yaml'):
        for path in profiles.iterdir():
            path.unlink()
        (profiles / name).write_text(text)
        result, details = check('Device profiles', conf)
        assert result == SUCCESS
        [found] = re.findall('profiles: 1, digest: ([0-9a-f]{32})', details)
        return found
    traits = ['CUSTOM_A: required', 'CUSTOM_B: forbidden']
    assert len({digest(PROFILE + f'  traits: {{{", ".join(order)}}}')
                for order in (traits, traits[::-1])}) == 1
    first = digest(PROFILE)
    assert digest(json.dumps(CYBORGS), 'other.json') == first
    assert digest(PROFILE.replace(': 1}', ': 2}')) != first
    # Another version of nova_accel may write other extra specs.
    monkeypatch.setattr('nova_accel.core.request.flavor_specs.expand',
                        lambda profile, flavor: {'accel:new': 'yes'})
    assert digest(PROFILE) == first


def test_digest_fits_into_a_line_of_the_table(run, profiles):
    (profiles / 'gpu.yaml').write_text(PROFILE)
    _code, out, _err = run(f'[nova_accel]\nprofile_dirs = {profiles}\n')
    assert re.search('digest: [0-9a-f]{32} *\\|', out)


@pytest.mark.parametrize('text, words', [
    ('groups: 3', 'broken.yaml'),
    (PROFILE + '  traits: {' + ', '.join(
        f'CUSTOM_{number}_{"X" * 230}: required' for number in range(99))
     + '}', 'bytes')])
def test_broken_profile_fails(check, profiles, text, words):
    (profiles / 'broken.yaml').write_text(text)
    result, details = check('Device profiles',
                            f'[nova_accel]\nprofile_dirs = {profiles}\n')
    assert result == FAILURE
    assert words in details


def test_unreadable_directory_of_profiles_fails(check, profiles, monkeypatch):
    def refuse(path):
        raise PermissionError(13, 'Permission denied')
    monkeypatch.setattr('nova_accel.profiles.store.names', refuse)
    assert check('Device profiles',
                 f'[nova_accel]\nprofile_dirs = {profiles}\n') == (
        FAILURE, f'{profiles}: cannot be listed (Permission denied)')


@pytest.mark.parametrize('option, result, words', [
    ('true', WARNING, '[nova_accel] iommufd: has no effect: this host has no '
     '/dev/iommu'), ('false', SUCCESS, '1 entry')])
def test_kernel_without_iommufd_is_a_warning(check, option, result, words):
    found, details = check('nova-compute', f'{COMPUTE}iommufd = {option}\n')
    assert found == result
    assert words in details


def test_missing_directory_of_profiles_is_a_warning(check, profiles):
    assert check('Device profiles', '[nova_accel]\n'
                 f'profile_dirs = {profiles},{profiles}/no\n') == (
        WARNING, f'{profiles}/no: is not a directory')


def test_compute_nodes_that_are_up_to_date_succeed(check, placement):
    placement.add('compute1', IDS)
    # Not a PCI device, so it has no ids.
    placement.add('compute2', name='_accel_mtty')
    # The device is not offered any more, so its traits are not updated.
    placement.add('compute3', providers.MISSING)
    placement.add('compute4', name='_accel_CUSTOM_GPU')
    # The providers of several Regions are below the provider of the device.
    placement.add('compute6', IDS)
    placement.providers.append(_provider(
        'region', f'compute6_accel_{GPU}_VGPU_a', 'compute6/device',
        [naming.MARKER_TRAIT], [], root='compute6'))
    # An operator has set the trait.
    placement.providers.append(_provider(
        'compute5', 'compute5', None, [naming.MARKER_TRAIT], []))
    assert check(PLACEMENT, services.CONF) == (
        SUCCESS, 'each nova-compute with devices runs this nova_accel')


@pytest.mark.parametrize('traits, marked', [
    ([IDS], False), ([], True),
    (['CUSTOM_NOVA_ACCEL_NUMA_NODE_0'], True)])
def test_compute_node_with_older_providers_is_a_warning(
        check, placement, traits, marked):
    placement.add('compute1', *traits, marked=marked)
    placement.add('compute2', IDS)
    assert check(PLACEMENT, services.CONF) == (
        WARNING, 'compute node compute1: nova-compute runs an older '
        'nova_accel there; install this version and restart nova-compute')


def test_five_of_many_older_compute_nodes_are_named(check, placement):
    for number in range(6, 0, -1):
        placement.add(f'compute{number}', marked=False)
    result, details = check(PLACEMENT, services.CONF)
    assert result == WARNING
    assert details.startswith(
        'compute nodes compute1, compute2, compute3, compute4, compute5 and '
        '1 more: nova-compute')


def test_devices_are_checked_if_placement_limits_candidates(check, placement):
    placement.most_candidates = 1
    placement.add('compute1', IDS)
    placement.add('compute2')
    placement.add('compute3', IDS)
    result, details = check(PLACEMENT, services.CONF)
    assert result == WARNING
    assert details.startswith('compute node compute2: ')


def test_number_of_requests_does_not_grow_with_the_hosts(check, placement):
    for number in range(100):
        placement.add(f'compute{number}', IDS)
    check(PLACEMENT, services.CONF)
    assert len([request for request in placement.mock.request_history
                if request.url.startswith(services.PLACEMENT)]) <= 6


def test_placement_without_our_devices_succeeds(check, placement):
    assert check(PLACEMENT, services.CONF)[0] == SUCCESS


def test_placement_that_does_not_answer_fails(check, placement):
    placement.fail(f'{services.KEYSTONE}/auth/tokens',
                   requests.ConnectionError('no route'))
    result, details = check(PLACEMENT, services.CONF)
    assert result == FAILURE
    assert details.startswith('Placement: cannot be queried: ')
    assert 'check [placement] in nova.conf' in details


def test_option_that_does_not_exist_is_a_warning(check):
    result, details = check('Options', '[nova_accel]\ndevicespec = {}\n')
    assert result == WARNING
    assert details.startswith('[nova_accel] devicespec in /')
    assert details.endswith('the nearest option is device_spec')


@pytest.mark.parametrize('name, version, result', [
    ('nova', f'{novas.TESTED[0]}.3.1', SUCCESS),
    ('nova', f'{novas.TESTED[0] - 1}.0.0', WARNING),
    ('nova', f'{novas.TESTED[-1] + 1}.0.0.0rc1', WARNING),
    ('openstack-placement', f'{novas.TESTED[0]}.0.0', WARNING)])
def test_version_that_is_not_tested_is_a_warning(
        check, installed, name, version, result):
    installed(name, version)
    found, details = check('Versions', '')
    assert found == result
    assert f'{name} {version}' in details
    assert (novas.text() in details) == (result == WARNING)


def test_missing_nova_is_a_warning(check, monkeypatch, installed):
    monkeypatch.setattr('sys.path', [])
    assert check('Versions', '') == (
        WARNING, 'nova: is not installed for this Python; run this with the '
        'Python of Nova, and install nova_accel there')


@pytest.mark.parametrize('conf, words', [
    (None, 'Failed to find some config files'),
    (b'x', 'Failed to parse'), (b'\xff\xfe', 'codec')])
def test_unusable_nova_conf_exits_with_255(capsys, tmp_path, conf, words):
    path = tmp_path / 'nova.conf'
    if conf:
        path.write_bytes(conf)
    assert status.main(['--config-file', str(path), 'upgrade', 'check']) == (
        status.BROKEN)
    captured = capsys.readouterr()
    assert captured.out == ''
    assert captured.err.startswith('nova-accel-status: ')
    assert words in captured.err and 'Traceback' not in captured.err


@pytest.mark.parametrize('old, new', [
    ('= password\n', '= telepathy\n'), ('= RegionOne', '= RegionTwo'),
    ('region_name', 'connect_retries = many\nregion_name')])
def test_unusable_placement_options_fail(check, placement, old, new):
    result, details = check(PLACEMENT, services.CONF.replace(old, new))
    assert result == FAILURE
    assert details


def test_files_of_nova_compute_are_read_by_default(tmp_path, installed):
    folder = tmp_path / '.nova'
    (folder / 'nova-compute.conf.d').mkdir(parents=True)
    (folder / 'nova.conf').write_text('[DEFAULT]\nlog_file = x\n')
    (folder / 'nova-compute.conf').write_text(COMPUTE.replace(
        'accel.', 'libvirt.') + f'profile_dirs = {folder}\n')
    # The error is in the result. It must not be logged to the terminal too.
    (folder / 'broken.yaml').write_text('groups: 3')
    arguments = [sys.executable, '-m', 'nova_accel.cmd.status', 'upgrade',
                 'check', '--json']

    def call():
        done = subprocess.run(
            arguments, capture_output=True, text=True, timeout=60,
            cwd=pathlib.Path(__file__).parents[3],
            env={'HOME': str(tmp_path), 'PATH': ''})
        assert done.stderr == ''
        return json.loads(done.stdout)['checks'][1]
    assert call()['result'] == FAILURE
    (folder / 'nova-compute.conf.d' / 'accel.conf').write_text(
        '[DEFAULT]\ncompute_driver = accel.LibvirtDriver\n')
    assert call()['result'] == SUCCESS


_REFUSED = ', '.join(f'0000:{bus}:00.0 (10de:2330)' for bus in (
    '43', '44', '48', '49', '83', '84', '88', '89')) + (
    ': isolation = strict refuses it: sysfs does not show how it is reset; '
    'boot Linux 5.15 or later, which has reset_method')


@pytest.mark.parametrize('isolation, result, details', [
    ('standard', SUCCESS, '8 devices would be refused under isolation = '
     f'strict. {_REFUSED}'), ('strict', WARNING, _REFUSED)])
def test_effect_of_strict_isolation_is_told(check, isolation, result,
                                            details):
    assert check('Isolation', f'{COMPUTE}isolation = {isolation}\n') == (
        result, details)
    assert check('Isolation', f'{COMPUTE}isolation = {isolation}\n'.replace(
        'l1-8gpu', 'h200-guest').replace('2330', '2335')) == (
        SUCCESS, {'standard': '0 devices would be refused under isolation = '
                              'strict',
                  'strict': 'isolation = strict refuses no device'}[isolation])
