# SPDX-License-Identifier: Apache-2.0
"""nova-accel host guest-topology: what a guest would be told."""

import json
import pathlib
from xml.etree import ElementTree

import pytest

from tests.unit import build

RECORDING = str(build.DATA / 'hosts' / 'l1-8gpu.json')
GPU, NIC, OTHER_NODE = '0000:43:00.0', '0000:45:00.0', '0000:83:00.0'


@pytest.fixture
def topology(run):
    def call(*arguments, conf='', root=RECORDING):
        return run('host', 'guest-topology', '--sysfs-root', str(root),
                   *arguments, conf=conf)
    return call


def test_file_has_a_cell_for_each_node_of_the_devices(topology):
    code, out, err = topology(OTHER_NODE, GPU, NIC, GPU)
    assert (code, err) == (0, '')
    assert {cell.get('numaid'): [device.get('busid') for device in cell]
            for cell in ElementTree.fromstring(out)} == {
        '0': ['0000:fc:00.0', '0000:fd:00.0'], '1': ['0000:ff:00.0']}
    _code, out, _err = topology(OTHER_NODE)
    assert [cell.get('numaid') for cell in ElementTree.fromstring(out)] == [
        '0']


def test_document_has_the_file_and_the_places(topology):
    _code, nccl_file, _err = topology(GPU, NIC)
    _code, out, _err = topology('--format', 'json', GPU, NIC, conf=(
        '[nova_accel]\ndevice_spec = {"product_id": "2330", '
        '"resource_class": "gpu"}\n'))
    document = json.loads(out)
    assert document['ncclTopology'] == nccl_file
    [request] = document['requests']
    gpu, nic = (device['attributes'] for device in request['devices'])
    assert gpu == {
        'resourceClass': {'string': 'CUSTOM_GPU'},
        'resource.kubernetes.io/pciBusID': {'string': '0000:fe:00.0'},
        'path': {'string': 'fd/00.0/00.0'}, 'numaCell': {'int': 0},
        'hostNumaNode': {'int': 0}, 'hostPcieSwitch': {'int': 0}}
    assert nic['hostPcieSwitch'] == gpu['hostPcieSwitch']
    assert 'resourceClass' not in nic


def test_device_that_is_left_out(topology, tmp_path):
    recording = json.loads(pathlib.Path(RECORDING).read_text())
    [node] = [path for path in recording['files']
              if path.endswith(f'{OTHER_NODE}/numa_node')]
    recording['files'][node] = '-1\n'
    root = tmp_path / 'host.json'
    root.write_text(json.dumps(recording))
    code, out, err = topology(GPU, OTHER_NODE, f'0000{GPU}', root=root)
    assert code == 0
    assert [device.get('busid') for device in ElementTree.fromstring(
        out).iter('pci')] == ['0000:ff:00.0']
    assert f'{OTHER_NODE} is not in the topology file' in err


@pytest.mark.parametrize('address, reason', [
    ('43:00.0', 'is no PCI address'), ('0000:99:00.0', 'is not on this host'),
    ('0000:41:00.0', 'is a bridge')])
def test_address_of_no_device(topology, address, reason):
    code, out, err = topology(GPU, address)
    assert (code, out) == (1, '')
    assert err.startswith(f'nova-accel: {address}: {reason}')
    assert 'nova-accel host show --all' in err


@pytest.mark.parametrize('facts', [
    {'class': '0x010802\n'}, {'numa_node': '-1\n'}])
def test_guest_without_a_file(topology, tmp_path, facts):
    build.sysfs({'pci0000:80/0000:81:00.0': facts}, build.CPULESS_NODES,
                ).write(tmp_path)
    code, out, err = topology('0000:81:00.0', root=tmp_path)
    assert (code, out) == (0, '')
    assert 'The guest gets no topology file for NCCL: none of' in err
    _code, out, _err = topology('0000:81:00.0', '--format', 'json',
                                root=tmp_path)
    assert 'ncclTopology' not in json.loads(out)


def test_more_devices_than_nccl_reads(topology, tmp_path):
    build.sysfs({f'pci0000:80/0000:{bus:02x}:00.0': {}
                 for bus in range(0x81, 0x81 + 33)}).write(tmp_path)
    code, out, err = topology(*(f'0000:{bus:02x}:00.0' for bus
                                in range(0x81, 0x81 + 33)), root=tmp_path)
    assert (code, out) == (0, '')
    assert 'The guest gets no topology file for NCCL: <cpu' in err
    assert 'has 33 children, more than 32' in err


def test_links_of_a_live_host_are_in_the_file(topology, tmp_path):
    link = {'max_link_speed': '32.0 GT/s PCIe\n', 'max_link_width': '16\n'}
    bridge, path, devices = {'class': '0x060400\n'}, 'pci0000:80', {}
    for name in ('0000:80:01.0', '0000:81:00.0', '0000:82:00.0'):
        path += f'/{name}'
        devices[path] = {**bridge, **link}
    build.sysfs({**devices, f'{path}/0000:83:00.0': link}).write(tmp_path)
    _code, out, _err = topology('0000:83:00.0', root=tmp_path)
    assert [element.get('link_speed') for element
            in ElementTree.fromstring(out).iter('pci')] == [
        '32.0 GT/s PCIe'] * 2
