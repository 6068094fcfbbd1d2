# SPDX-License-Identifier: Apache-2.0
"""``nova-accel host check``, with the real keystoneauth1.

requests_mock provides the answers of Keystone and Placement. libvirt is a
fake.
"""

import json
import sys
import types

import pytest
import requests
import requests_mock

from nova_accel.cmd import main
from nova_accel.core import naming
from nova_accel.host import tree
from tests import fmpm
from tests.unit import build
from tests.unit.cmd import services

KEYSTONE, PLACEMENT = services.KEYSTONE, services.PLACEMENT
SERVER = '0a6f4c7e-4a86-4f5e-8f0f-1d3fb0c4d2a1'
GPU = '0000:43:00.0'
PROVIDER = naming.provider_uuid(build.ROOT, build.address(GPU))

CONF = f"""
[nova_accel]
sysfs_root = {build.DATA}/hosts/l1-8gpu.json
device_spec = {{"address": "{GPU}", "resource_class": "GPU"}}
{services.CONF}"""


class Libvirt(types.ModuleType):
    """The part of the module libvirt that the command uses."""

    VIR_DOMAIN_XML_INACTIVE = 2
    VIR_CONNECT_LIST_DOMAINS_ACTIVE = 1
    VIR_CONNECT_LIST_DOMAINS_INACTIVE = 2
    VIR_ERR_NO_DOMAIN = 42

    class libvirtError(Exception):

        def get_error_code(self):
            return 38

    def __init__(self):
        super().__init__('libvirt')
        self.domains = []
        self.opened = []
        self.closed = 0

    def registerErrorHandler(self, handler, context):
        handler(context, None)

    def openReadOnly(self, uri):
        self.opened.append(uri)
        return self

    def getHostname(self):
        return 'compute1'

    def listAllDomains(self, flags):
        assert flags == 3
        return self.domains

    def close(self):
        self.closed += 1


class Domain:

    def __init__(self, *hostdevs, running=None):
        self._hostdevs = {2: hostdevs,
                          0: hostdevs if running is None else running}

    def UUIDString(self):
        return SERVER

    def XMLDesc(self, flags):
        return (f'<domain><uuid>{SERVER}</uuid><devices>'
                f'{"".join(self._hostdevs[flags])}</devices></domain>')


def hostdev(at=GPU, provider=PROVIDER):
    bus = at.split(':')[1]
    return (f'<hostdev type="pci" managed="yes"><source><address '
            f'domain="0x0000" bus="0x{bus}" slot="0x00" function="0x0"/>'
            f'</source><alias name="{naming.alias("ACCEL0", provider, 0)}"/>'
            '</hostdev>')


class Placement(services.Services):
    """Simulated Keystone and Placement.

    Placement has a compute node, and one provider of nova_accel below it.
    """

    def __init__(self, mock):
        super().__init__(mock)
        root, gpu, pci = [
            {'uuid': uuid, 'name': name, 'parent_provider_uuid': parent}
            for uuid, name, parent in (
                (build.ROOT, 'compute1', None),
                (PROVIDER, f'compute1_accel_{GPU}', build.ROOT),
                (SERVER, 'compute1_0000:81:00.0', build.ROOT))]
        self.answer('?name=compute1', resource_providers=[root])
        self.answer('?name=nobody', resource_providers=[])
        self.mock.get(f'{PLACEMENT}/traits?name=in:{naming.MARKER_TRAIT}',
                      json={'traits': [naming.MARKER_TRAIT]})
        # An operator can set the marker trait on any provider.
        self.answer(f'?in_tree={build.ROOT}&required={naming.MARKER_TRAIT}',
                    resource_providers=[root, gpu, pci])
        self.allocate(SERVER)

    def answer(self, path, status=200, **body):
        self.mock.get(f'{PLACEMENT}/resource_providers{path}', json=body,
                      status_code=status)

    def allocate(self, *servers):
        self.answer(f'/{PROVIDER}/allocations', allocations={
            server: {'resources': {'CUSTOM_GPU': 1}} for server in servers})

    def asked(self):
        return [request for request in self.mock.request_history
                if request.url.startswith(f'{PLACEMENT}/resource_providers')]


@pytest.fixture
def libvirt(monkeypatch):
    module = Libvirt()
    module.domains.append(Domain(hostdev()))
    monkeypatch.setitem(sys.modules, 'libvirt', module)
    return module


@pytest.fixture
def placement():
    with requests_mock.Mocker() as mock:
        yield Placement(mock)


@pytest.fixture
def check(capsys, tmp_path, libvirt, placement):
    """Call the command; return its exit code, stdout and stderr."""
    def call(*arguments, conf=CONF):
        path = tmp_path / 'nova.conf'
        path.write_text(conf)
        code = main.main(['--config-file', str(path), 'host', 'check',
                          *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err
    return call


def test_consistent_host_has_no_findings(check, libvirt):
    assert check() == (0, '', 'nova-accel: compute1: 0 findings\n')
    assert (libvirt.opened, libvirt.closed) == (['qemu:///system'], 1)


def test_remedy_follows_each_finding(check, placement):
    placement.allocate()
    code, out, err = check()
    assert (code, err) == (1, 'nova-accel: compute1: 1 finding\n')
    finding, remedy = out.splitlines()
    assert finding == (f'! resource provider compute1_accel_{GPU}: 1 of its '
                       f'units is held, 0 are allocated: {SERVER} should '
                       'not have it')
    assert remedy.startswith('  if the server is on another host')


def test_json_has_the_findings(check, libvirt):
    libvirt.domains.clear()
    code, out, _err = check('-f', 'json')
    [finding] = json.loads(out)
    assert code == 1
    assert set(finding) == {'Thing', 'Reason', 'Remedy', 'Provider',
                            'Withheld', 'Passing'}
    assert (finding['Provider'], finding['Passing']) == (PROVIDER, True)
    assert check('-f', 'value', '-c', 'provider')[:2] == (
        1, f'{PROVIDER}\n')


def test_devices_of_a_suspended_guest_are_held(check, libvirt):
    libvirt.domains[:] = [Domain(hostdev(), running=())]
    assert check()[0] == 0


def test_missing_device_is_a_finding(check, libvirt):
    libvirt.domains.append(Domain(hostdev('0000:f0:00.0')))
    code, out, _err = check()
    assert code == 1
    assert (f'! device 0000:f0:00.0 of server {SERVER}: is not there any '
            'more\n') in out


def test_placement_requests_have_microversion_and_token(check, placement):
    check()
    for request in placement.asked():
        assert request.headers['OpenStack-API-Version'] == 'placement 1.36'
        assert request.headers['X-Auth-Token'] == 'a token'


def test_endpoint_override(check, placement):
    placement.fail(PLACEMENT, requests.ConnectionError('no'))
    assert check(conf=CONF + f'endpoint_override = {PLACEMENT}\n')[0] == 0


def test_only_our_providers_are_read(check, placement):
    check()
    assert not [request for request in placement.asked()
                if f'{build.ROOT}/allocations' in request.url
                or f'{SERVER}/allocations' in request.url]


def test_connection_uri(check, libvirt):
    check(conf=CONF + '[libvirt]\nconnection_uri = test:///default\n')
    assert libvirt.opened == ['test:///default']


def test_sysfs_root(check):
    code, out, err = check('--sysfs-root', '/nowhere')
    assert (code, out) == (2, '')
    assert err.startswith("nova-accel: sysfs_root '/nowhere': cannot be read")


def test_invalid_entry_is_reported(check):
    _code, _out, err = check(conf=CONF.replace(
        '[placement]', 'device_spec = {"colour": "green"}\n[placement]'))
    assert "device_spec #2: does not know the key 'colour'" in err


def assert_fails(outcome, *words):
    """Check that the command exited with 2 and printed one error line."""
    code, out, err = outcome
    assert (code, out) == (2, '')
    assert err.startswith('nova-accel: ') and err.count('\n') == 1
    assert ';' in err
    for word in words:
        assert word in err


def test_missing_libvirt_module_exits_with_2(check, monkeypatch):
    monkeypatch.setitem(sys.modules, 'libvirt', None)
    assert_fails(check(), 'libvirt: its Python module', 'libvirt-python')


def test_unreachable_libvirt_exits_with_2(check, libvirt, monkeypatch):
    def refuse(uri):
        raise libvirt.libvirtError('Failed to connect socket')
    monkeypatch.setattr(libvirt, 'openReadOnly', refuse)
    assert_fails(check(), 'libvirt: cannot be queried: Failed to connect '
                 'socket', 'connection_uri')


def test_unreadable_domain_exits_with_2(check, libvirt, monkeypatch):
    def fail(domain, flags):
        raise libvirt.libvirtError('internal error')
    monkeypatch.setattr(Domain, 'XMLDesc', fail)
    code, _out, err = check()
    assert (code, err) == (2, 'nova-accel: libvirt: cannot return the XML of '
                              'a domain: internal error\n')
    assert libvirt.closed == 1


def test_unknown_host_exits_with_2(check):
    assert_fails(check('--host', 'nobody'), 'compute node nobody: Placement '
                 'has no resource provider of this name', '--host')


def test_host_option_names_the_compute_node(check, libvirt, monkeypatch):
    monkeypatch.setattr(libvirt, 'getHostname', lambda: 'nobody')
    assert check('--host', 'compute1') == (
        0, '', 'nova-accel: compute1: 0 findings\n')


def test_missing_placement_options_exit_with_2(check):
    assert_fails(check(conf=CONF.partition('[placement]')[0]),
                 'auth_type in [placement]', '--config-file')


def test_unknown_auth_type_exits_with_2(check):
    assert_fails(check(conf=CONF.replace('= password\n', '= telepathy\n')),
                 'telepathy')


@pytest.mark.parametrize('url', [
    f'{KEYSTONE}/auth/tokens',
    f'{PLACEMENT}/resource_providers?name=compute1'])
def test_connection_error_exits_with_2(check, placement, url):
    placement.fail(url, requests.ConnectionError('no route'))
    assert_fails(check(), 'Placement: cannot be queried', '[placement]')


def test_placement_missing_from_the_catalogue_exits_with_2(check):
    assert_fails(check(conf=CONF.replace('RegionOne', 'RegionTwo')),
                 'Placement: cannot be queried')


def test_error_status_of_placement_exits_with_2(check, placement):
    placement.answer(f'/{PROVIDER}/allocations', 403,
                     errors=[{'status': 403}])
    assert_fails(check(), 'Placement: answers 403 to /resource_providers/'
                 f'{PROVIDER}/allocations: ')


def test_non_json_answer_of_placement_exits_with_2(check, placement):
    placement.mock.get(f'{PLACEMENT}/resource_providers?name=compute1',
                       text='<html>')
    assert_fails(check(), 'Placement: answers 200 to /resource_providers?'
                 'name=compute1: \'<html>\'')


def fabric(folder, conf):
    """Return a fabric manager with two GPUs, and a nova.conf that names it."""
    links = folder / 'links.yaml'
    links.write_text(f'partitions:\n- devices: ["{GPU}"]\n')
    tree.open_tree(f'{build.DATA}/hosts/l1-8gpu.json').write(folder)
    manager = fmpm.FabricManager(folder, partitions={0: (1, 2)})
    option = manager.option(modules={'1': GPU, '2': '0000:44:00.0'})
    return manager, conf.replace(
        f'sysfs_root = {build.DATA}/hosts/l1-8gpu.json',
        f'sysfs_root = {folder}/sys\nlink_domains = {links}\n'
        f'fabric_manager = {option}')


def test_what_contradicts_the_fabric_manager_is_a_finding(check, tmp_path):
    manager, conf = fabric(tmp_path, CONF)
    code, out, err = check(conf=conf)
    assert (code, err) == (1, 'nova-accel: compute1: 1 finding\n')
    assert out.startswith(f'! [nova_accel] link_domains: the partition {GPU} '
                          'is not used: the fabric manager has partition 0 ')
    manager.stop()
    code, out, _err = check(conf=conf)
    assert (code, out.count('! ')) == (1, 1)
    assert out.startswith('! [nova_accel] fabric_manager: fmpm: list '
                          'partitions: ')
    assert out.endswith('nova-accel host show\n')
