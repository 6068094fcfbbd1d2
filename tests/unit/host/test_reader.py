# SPDX-License-Identifier: Apache-2.0
"""Machines read into a Host: two recorded ones, and unusual ones."""

import json

import pytest

from nova_accel.core import model
from nova_accel.core.device_spec import policy
from nova_accel.core.device_spec import spec_entry
from nova_accel.host import reader
from nova_accel.host import recorder
from nova_accel.host import tree
from tests.unit import build


def _read(name, *specs):
    return reader.read(build.recorded(name), build.entries(*specs))


def test_a_recorded_machine_has_all_its_functions():
    host = _read('l1')
    assert len(host.functions) == 38
    assert (host.devices, host.refusals, host.problems) == ((), (), ())
    functions = {str(f.address): f for f in host.functions}
    assert functions['0000:44:00.0'].num_vfs == 4
    assert functions['0000:44:00.4'].physfn == build.address('0000:44:00.0')
    assert functions['0000:84:00.0'].ids == '10de:2330'
    assert functions['0000:84:00.0'].location.numa_node == 1
    assert functions['0000:00:02.0'].use == 'disk vda is mounted'
    assert functions['0000:00:03.0'].use == (
        'network port eth0 has an address')


def test_locations_of_eight_recorded_gpus_are_read():
    host = _read('l1-8gpu', {'product_id': '2330'})
    assert {str(device.address): (device.location.numa_node,
                                  device.location.switch)
            for device in host.devices} == {
        '0000:43:00.0': (0, '0000:41:00.0'),
        '0000:44:00.0': (0, '0000:41:00.0'),
        '0000:48:00.0': (0, '0000:46:00.0'),
        '0000:49:00.0': (0, '0000:46:00.0'),
        '0000:83:00.0': (1, '0000:81:00.0'),
        '0000:84:00.0': (1, '0000:81:00.0'),
        '0000:88:00.0': (1, '0000:86:00.0'),
        '0000:89:00.0': (1, '0000:86:00.0')}
    assert host.refusals == ()


@pytest.mark.parametrize('name', ['l1', 'l1-8gpu'])
def test_refusals_of_a_recorded_machine_have_reasons(name):
    host = _read(name, {})
    assert all(refusal.reason for refusal in host.refusals)
    assert {'0000:00:02.0', '0000:00:03.0'} <= set(build.refusals(host))


@pytest.mark.parametrize('spec, units', [
    ({'product_id': '20b0', 'resource_class': 'CUSTOM_X'},
     ['0000:44:00.4', '0000:44:00.5', '0000:44:00.6', '0000:44:00.7']),
    ({'product_id': '37c9', 'resource_class': 'CUSTOM_X'},
     ['0000:85:01.0', '0000:85:01.1']),
    ({'vendor_id': '1b36', 'product_id': '0010', 'keeps_data': 'yes',
      'resource_class': 'CUSTOM_X'},
     ['0000:81:00.0', '0000:82:00.0 0000:82:00.1']),
    ({'address': {'bus': '42'}, 'resource_class': 'CUSTOM_X'},
     ['0000:42:01.0 0000:42:02.0']),
])
def test_recorded_machine_is_offered_by_iommu_groups(spec, units):
    assert build.units(_read('l1', spec)) == {'CUSTOM_X': units}


def test_half_a_recorded_group_is_refused():
    host = _read('l1', {'vendor_id': '1234', 'address': '0000:42:01.0'})
    assert host.devices == ()
    reason = build.refusals(host)['0000:42:01.0']
    assert 'IOMMU group 24' in reason
    assert '0000:42:02.0' in reason


def test_only_numa_node_of_the_machine_is_read():
    recording = build.sysfs(
        {'pci0000:80/0000:81:00.0': {}},
        folders=['sys/devices/system/node/node0'])
    assert reader.read(recording).only_node == 0


def test_node_without_cpus_is_no_second_node():
    machine = build.sysfs(
        {'pci0000:80/0000:81:00.0': {'numa_node': '2\n'}},
        build.numa_nodes({0: ('0-7', '10 20'), 2: ('', '20 10')}))
    host = reader.read(machine, build.entries({}))
    assert (host.only_node, host.numa_nodes, host.cpuless_nodes) == (
        0, (0,), {2: 0})
    [device] = host.devices
    assert (device.location.numa_node, device.location.cpuless_node) == (0, 2)


@pytest.mark.parametrize('spec', [
    {'address': '0000:00:02.0'}, {'address': '0000:00:03.0'}])
def test_what_the_host_uses_is_not_offered(spec):
    host = _read('l1', spec)
    assert host.devices == ()
    [reason] = build.refusals(host).values()
    assert reason.startswith('the host uses it: ')


def test_device_claimed_by_another_program_is_refused():
    host = reader.read(
        build.recorded('l1-8gpu'), build.entries({'product_id': '2330'}),
        build.entries({'address': '0000:43:00.0'},
                      option='[pci] device_spec'))
    assert list(build.refusals(host)) == ['0000:43:00.0']
    assert len(host.devices) == 7


@pytest.mark.parametrize('devname, refused', [
    ('eth0', ['0000:81:00.1', '0000:81:00.2']),
    ('eth2', ['0000:81:00.1']), ('eth1', [])])
def test_device_claimed_by_port_name_is_refused(devname, refused):
    vf = {'device': '0x2331\n', 'physfn': '../0000:81:00.0'}
    machine = build.sysfs(
        {'pci0000:80/0000:81:00.0': {'sriov_numvfs': '2\n',
                                     'sriov_totalvfs': '2\n'},
         'pci0000:80/0000:81:00.1': vf, 'pci0000:80/0000:81:00.2': vf},
        links={f'sys/class/net/{name}': f'../../devices/pci0000:80/{at}/net/'
               f'{name}' for name, at in (('eth0', '0000:81:00.0'),
                                          ('eth2', '0000:81:00.1'))})
    claims = spec_entry.parse_foreign([json.dumps({'devname': devname})],
                                      '[pci] device_spec')
    for tree_ in (machine, recorder.record(machine)):
        host = reader.read(tree_, build.entries({'product_id': '2331'}),
                           claims)
        assert list(build.refusals(host)) == refused


_MODULE = 'sys/module/{}/parameters'
_TYPE1 = f'{_MODULE.format("vfio_iommu_type1")}/allow_unsafe_interrupts'


@pytest.mark.parametrize('path, text, says', [
    (_TYPE1, 'Y\n', 'allow_unsafe_interrupts'), (_TYPE1, 'N\n', ''),
    (f'{_MODULE.format("iommufd")}/allow_unsafe_interrupts', 'Y\n',
     'allow_unsafe_interrupts'),
    (f'{_MODULE.format("vfio")}/enable_unsafe_noiommu_mode', 'Y\n',
     'enable_unsafe_noiommu_mode'),
    ('proc/cmdline', 'root=/dev/x pcie_acs_override=downstream quiet\n',
     'pcie_acs_override'),
    ('proc/cmdline', 'pcie-acs-override\n', 'pcie_acs_override'),
    ('proc/cmdline', 'x=pcie_acs_override pcie_acs_overrides=id\n', '')])
def test_unsafe_host_offers_no_functions(
        path, text, says):
    machine = build.sysfs({'pci0000:80/0000:81:00.0': {}}, files={path: text})
    entries = build.entries({})
    for tree_ in (machine, recorder.record(machine)):
        host = reader.read(tree_, entries)
        assert bool(host.devices) != bool(says)
        assert says in ' '.join(build.refusals(host).values())
        allowed = reader.read(tree_, entries, policy=policy.Policy(
            allow_unsafe_host=True))
        assert build.refusals(allowed) == {}
        assert len(allowed.devices) == 1
        assert [says in problem and 'as allow_unsafe_host says' in problem
                for problem in allowed.problems] == [True] * bool(says)


def test_unsafe_host_offers_mdevs():
    recording = build.recorded('l1')
    recording.files[_TYPE1] = 'Y\n'
    host = reader.read(recording, build.entries(
        {'vendor_id': '10de', 'mdev_type': 'nvidia-471'}))
    assert {region.mdevs for device in host.devices
            for region in device.regions} == {True}


@pytest.mark.parametrize('machine', [
    tree.Recording(), tree.Directory('/nonexistent/sys'),
    tree.Recording(folders=['sys/bus/pci/devices'])])
def test_a_machine_without_pci_is_an_empty_host(machine):
    assert reader.read(machine, build.entries({})) == model.Host()


def test_a_directory_reads_as_its_recording_does(tmp_path):
    recording = build.recorded('l1')
    recording.write(tmp_path)
    entries = build.entries({})
    assert reader.read(tree.open_tree(tmp_path), entries) == reader.read(
        recording, entries)


def test_unreadable_function_blocks_its_iommu_group():
    recording = build.recorded('l1-8gpu')
    first, second = (f'sys/devices/{function}' for function in ('a', 'b'))
    for name, path in (('0000:c1:00.0', first), ('0000:c1:00.1', second)):
        recording.links[f'sys/bus/pci/devices/{name}'] = (
            f'../../../../{path}')
        recording.links[f'{path}/iommu_group'] = '../kernel/iommu_groups/99'
        recording.files.update({f'{path}/vendor': '0x1234',
                                f'{path}/device': '0x0001',
                                f'{path}/class': '0x120000'})
    entries, _broken = reader.parse(['{"vendor_id": "1234"}'])

    def read():
        return reader.read(tree.Recording(recording.files, recording.links),
                           entries)

    [device] = read().devices
    assert len(device.regions[0].units[0]) == 2
    del recording.files[f'{second}/class']
    host = read()
    assert host.devices == ()
    [refusal] = host.refusals
    assert refusal.reason.endswith(
        'has 0000:c1:00.1 (it cannot be read), which [nova_accel] device_spec '
        '#1 does not name')
