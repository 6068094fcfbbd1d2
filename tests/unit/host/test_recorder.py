# SPDX-License-Identifier: Apache-2.0
"""Recordings have what the reader reads, and do not identify the machine."""

import re

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_accel.core import health as core_health
from nova_accel.host import fpga
from nova_accel.host import health
from nova_accel.host import host_use
from nova_accel.host import numa
from nova_accel.host import reader
from nova_accel.host import recorder
from nova_accel.host import tree
from tests.unit import build

_NIC = 'sys/devices/pci0000:80/0000:81:00.0'
_MAC_NAME = 'enx001122334455'

_SECRETS = ('001122334455', '00:11:22:33:44:55', '20010db8', 'fe80',
            'C0A80001', '/srv/customer', 'customer-volume', 'SN12345678')


def _machine(root):
    """Return a machine with identifying names and contents."""
    build.sysfs(
        {'pci0000:80/0000:81:00.0': {'class': '0x020000\n'},
         'pci0000:80/0000:82:00.0': {'class': '0x010802\n'},
         'pci0000:80/0000:83:00.0': {}},
        files={
            f'{_NIC}/net/{_MAC_NAME}/address': '00:11:22:33:44:55\n',
            f'{_NIC}/serial_number': 'SN12345678\n',
            'sys/devices/pci0000:80/0000:82:00.0/block/sda/dev': '8:0\n',
            'sys/devices/pci0000:80/0000:82:00.0/block/sda/wwid':
                'SN12345678\n',
            'proc/1/mountinfo':
                '1 1 8:0 / / rw - ext4 /dev/sda rw\n'
                '2 1 0:50 / /srv/customer rw - nfs '
                'customer-volume:/srv/customer rw,addr=10.0.0.1\n'
                '3 1 8:0 /srv/customer /mnt rw - ext4 /dev/sda rw\n',
            'proc/swaps': 'Filename Type Size Used Priority\n',
            'proc/net/route':
                'Iface Destination Gateway Flags\n'
                f'{_MAC_NAME} C0A80001 00000000 0001\n',
            'proc/net/if_inet6':
                f'fe80000000000000021122fffe334455 02 40 20 80 {_MAC_NAME}\n'
                f'20010db8000000000000000000000001 02 40 00 80 {_MAC_NAME}\n',
        },
        links={
            f'sys/class/net/{_MAC_NAME}':
                f'../../devices/pci0000:80/0000:81:00.0/net/{_MAC_NAME}',
            'sys/class/block/sda':
                '../../devices/pci0000:80/0000:82:00.0/block/sda',
        }).write(root)
    return tree.open_tree(root)


def test_sizes_of_bars_are_recorded():
    machine = build.sysfs({'pci0000:80/0000:81:00.0': {
        'resource': build.H100_RESOURCE}})
    [function] = reader.read(recorder.record(machine)).functions
    assert [bar.size >> 20 for bar in function.bars] == [16, 128 << 10, 32]


def test_links_are_recorded():
    link = {'max_link_speed': '16.0 GT/s PCIe\n', 'max_link_width': '8\n',
            'current_link_speed': '2.5 GT/s PCIe\n',
            'current_link_width': '4\n'}
    path = 'pci0000:80/0000:80:01.0'
    recording = recorder.record(build.sysfs({
        path: {'class': '0x060400\n', **link},
        f'{path}/0000:81:00.0': link}))
    functions = reader.read(recording).functions
    assert [(function.max_link_speed, function.max_link_width)
            for function in functions] == [(16.0, 8)] * 2
    assert list(health.links(recording, functions[1])) == [
        core_health.Link('0000:81:00.0', 4, 8, 2.5, 16.0)]


def test_whether_functions_can_be_reset_is_recorded(tmp_path):
    can, cannot, unknown = ({'config': '', 'reset': '',
                             'reset_method': 'flr bus\n'}, {'config': ''}, {})
    build.sysfs({f'pci0000:80/0000:8{number}:00.0': files for number, files
                 in enumerate((can, cannot, unknown))}).write(tmp_path)
    # In sysfs, reset is writable for root and readable for nobody.
    (tmp_path / 'sys/devices/pci0000:80/0000:80:00.0/reset').chmod(0o200)
    live = tree.open_tree(tmp_path)
    recording = recorder.record(live)
    assert [function.reset_methods
            for function in reader.read(recording).functions] == [
        ('flr', 'bus'), (), None]
    assert reader.read(recording) == reader.read(live)
    assert 'config' in recording.dumps()


def test_cpus_and_distances_of_numa_nodes_are_recorded():
    machine = build.sysfs({'pci0000:80/0000:81:00.0': {'numa_node': '2\n'}},
                          build.CPULESS_NODES)
    recording = recorder.record(machine)
    assert {path: recording.files[path]
            for path in build.CPULESS_NODES} == build.CPULESS_NODES
    assert _host(recording) == _host(machine)


def _host(machine):
    return reader.read(machine, build.entries({}))


@pytest.mark.parametrize('name', ['l1', 'l1-8gpu'])
def test_a_recording_of_a_recording_is_the_same_host(name):
    machine = build.recorded(name)
    again = recorder.record(machine)
    assert _host(again) == _host(machine)
    assert _host(tree.Recording.loads(again.dumps())) == _host(machine)


@pytest.mark.parametrize('name', ['l1', 'l1-8gpu'])
def test_identical_recordings_are_identical_bytes(name, tmp_path):
    build.recorded(name).write(tmp_path)
    texts = {recorder.record(machine).dumps() for machine in (
        build.recorded(name), build.recorded(name), tree.open_tree(tmp_path),
        recorder.record(build.recorded(name)))}
    assert len(texts) == 1


def test_recording_does_not_identify_the_machine(tmp_path):
    text = recorder.record(_machine(tmp_path)).dumps()
    assert [secret for secret in _SECRETS if secret in text] == []
    assert str(tmp_path) not in text


def test_a_recording_is_the_same_host_but_for_names(tmp_path):
    machine = _machine(tmp_path)
    before, after = _host(machine), _host(recorder.record(machine))
    assert after.devices == before.devices
    assert [(refusal.address, refusal.reason.replace(
        _MAC_NAME, 'name0')) for refusal in before.refusals] == [
        (refusal.address, refusal.reason) for refusal in after.refusals]
    assert [refusal.reason for refusal in after.refusals] == [
        'the host uses it: network port name0 has an address',
        'the host uses it: disk sda is mounted']


def test_recording_twice_changes_nothing_more(tmp_path):
    once = recorder.record(_machine(tmp_path))
    again = recorder.record(once)
    assert (again.files, again.links) == (once.files, once.links)


def test_identifying_data_is_recorded_on_request(tmp_path):
    machine = _machine(tmp_path)
    recording = recorder.record(machine, identifying=True)
    assert recording.text(f'{_NIC}/serial_number') == 'SN12345678\n'
    assert _MAC_NAME in recording.dumps()
    assert _host(recording) == _host(machine)


def test_command_line_keeps_only_the_acs_override():
    machine = build.sysfs({'pci0000:80/0000:81:00.0': {}}, {
        'proc/cmdline': 'root=UUID=0d9d2ca2 pcie_acs_override=downstream\n'})
    assert recorder.record(machine).text('proc/cmdline') == (
        'pcie_acs_override=downstream\n')


def test_ports_named_by_mac_get_different_aliases(tmp_path):
    at = 'sys/devices/pci0000:80'
    machine = build.sysfs(
        {f'pci0000:80/0000:8{number}:00.0': {} for number in (1, 2)},
        files={'proc/net/route': 'Iface\nenx0011223344bb 0 0\n'},
        links={f'sys/class/net/enx0011223344{end}':
               f'../../{at[4:]}/{place}/net/enx0011223344{end}'
               for end, place in (('aa', '0000:81:00.0'),
                                  ('bb', '0000:82:00.0'))})
    recording = recorder.record(machine)
    assert '0011223344' not in recording.dumps()
    assert build.units(_host(recording)) == build.units(_host(machine)) == {
        'CUSTOM_PCI_10DE_2330': ['0000:81:00.0']}


@pytest.mark.parametrize('name, recorded', [
    ('rocex001122fffe334455', 'name0'), ('ibx001122fffe334455', 'name0'),
    ('iwx001122334455', 'name0'), ('mlx5_0', 'mlx5_0'),
    ('rocep129s0f1', 'rocep129s0f1')])
def test_rdma_device_named_by_guid_gets_an_alias(name, recorded):
    path = 'sys/devices/pci0000:80/0000:81:00.0/infiniband'
    machine = build.sysfs({'pci0000:80/0000:81:00.0': {}},
                          {f'{path}/{name}/fw_ver': '22.39\n'})
    recording = recorder.record(machine)
    assert recording.names(path) == [recorded]
    assert _host(recording) == _host(machine)


@pytest.mark.parametrize('link', ['lower_', 'upper_'])
def test_links_of_a_bridge_get_aliases(link):
    bridge = 'sys/devices/virtual/net/br0'
    machine = tree.Recording(links={
        'sys/class/net/br0': '../../devices/virtual/net/br0',
        f'{bridge}/{link}{_MAC_NAME}': f'../../../x/net/{_MAC_NAME}'})
    assert '001122334455' not in recorder.record(machine).dumps()


def test_the_path_of_a_swap_file_is_not_recorded():
    machine = tree.Recording({'proc/swaps':
                              'Filename Type\n/srv/customer/swap file\n'})
    assert 'customer' not in recorder.record(machine).dumps()


@pytest.mark.parametrize('source', [
    '/dev/mapper/luks-0f2e8a5c-6f1c-4d53-9a51-1c2d3e4f5a6b',
    '/dev/disk/by-uuid/0f2e8a5c-6f1c-4d53-9a51-1c2d3e4f5a6b'])
def test_the_unique_id_of_a_mounted_disk_is_not_recorded(source):
    machine = tree.Recording({'proc/1/mountinfo':
                              f'1 1 254:0 / / rw - ext4 {source} rw\n'})
    assert '0f2e8a5c' not in recorder.record(machine).dumps()


_HEADER = 'Filename Type Size Used Priority\n'
_NO_ADDRESS = '0' * 32 + ' 00 00 00 00 '


@pytest.mark.parametrize('path, text, recorded', [
    ('proc/1/mountinfo', '', ''),
    ('proc/1/mountinfo',
     '21 1 8:1 /a /b rw,x shared:1 - ext4 /dev/sda1 rw,y\n'
     '22 1 0:21 / /proc rw - proc proc rw\n'
     '23 1 0:40 /@ / rw - btrfs /dev/sda2 rw\n'
     '24 1 8:3 / /c rw - ext4 UUID=1234 rw\n'
     '25 1\n',
     '0 0 8:1 / / rw - fs /dev/sda1\n'
     '0 0 0:40 / / rw - fs /dev/sda2\n'
     '0 0 8:3 / / rw - fs none\n'),
    ('proc/1/mountinfo',
     '21 1 8:1 / /b rw - xfs /dev/sda1 rw,logdev=/dev/sdb1,rtdev=/dev/x/y\n',
     '0 0 8:1 / / rw - fs /dev/sda1:/dev/sdb1\n'),
    ('proc/self/mounts', '/dev/sda1 /secret ext4 rw 0 0\nproc /p proc 0 0\n'
     '/dev/mapper/secret /b xfs rw 0 0\n', '/dev/sda1 / fs rw\n'),
    ('proc/swaps', f'{_HEADER}/dev/sda3 partition 1 0 -2\n/swap file 1\n',
     'Filename\n/dev/sda3\n'),
    ('proc/net/route', 'Iface Destination\neth1 0 1\neth0 0 2\neth1 3 4\n',
     'Iface\neth1\neth0\n'),
    ('proc/net/if_inet6', 'fe80 02 40 20 80 eth1\n'
     'fe81 02 40 20 80 eth0\nfe82 02 40 20 80 eth1\n',
     f'{_NO_ADDRESS}eth1\n{_NO_ADDRESS}eth0\n'),
])
def test_files_of_proc_keep_what_the_reader_needs(
        path, text, recorded):
    assert recorder.record(tree.Recording({path: text})).files == {
        path: recorded}


_GPU = 'sys/devices/pci0000:80/0000:83:00.0'
_DISK_AT = 'devices/pci0000:80/0000:82:00.0'
_FPGA = 'sys/devices/pci0000:80/0000:83:00.0/fpga_manager/fpga0'
_TYPE = f'{_GPU}/mdev_supported_types/nvidia-468'

_ID4 = '3f1c9a52-7d0e-4b8a-9c61-5e2f7a90b1d4'
_ID5 = '3f1c9a52-7d0e-5b8a-9c61-5e2f7a90b1d4'


def _port(name, **links):
    path = f'devices/pci0000:80/0000:81:00.0/net/{name}'
    return {f'sys/class/net/{name}': f'../../{path}',
            **{f'sys/{path}/{link}': target
               for link, target in links.items()}}


def _disk(name, below='block'):
    path = f'{_DISK_AT}/{below}/{name}'
    return {f'sys/class/block/{name}': f'../../{path}'}


# Places with names that an operator or a tool can choose.
_NAMED = {
    **{f'a port, {name}': (name, {
        'proc/net/route': f'Iface\n{name} 0 0\n'}, _port(name))
       for name in ('tap3f1c9a52-7d', 'br-9f86d081884c', 'eth001122334455',
                    'enx001122334455', 'veth9f86d08', 'acme', 'eth0.1234',
                    'name-of-acme', 'enp1s0f0np0-acme', '001122334455')},
    'a port with an address': (
        'acme0', {'proc/net/if_inet6': 'fe80 02 40 20 80 acme0\n'},
        _port('acme0')),
    'a port that is not there': (
        'acme0', {'proc/net/route': 'Iface\nacme0 0 0\n'}, {}),
    'what a port belongs to': ('br-acme', {}, _port(
        'eth0', master='../../../../virtual/net/br-acme')),
    'what is on a port': ('bond.acme', {}, _port(
        'eth0', **{'upper_bond.acme': '../../../../virtual/net/bond.acme'})),
    'what a port is on': ('bond.acme', {}, _port(
        'eth0', **{'lower_bond.acme': '../../../../virtual/net/bond.acme'})),
    'an attribute of a port': ('acme_id', {
        'sys/devices/pci0000:80/0000:81:00.0/net/eth0/acme_id': ''},
        _port('eth0')),
    'an mdev of ours': (_ID5, {f'{_TYPE}/devices/{_ID5}/x': ''}, {}),
    'an mdev of others': (_ID4, {f'{_TYPE}/devices/{_ID4}/x': ''}, {}),
    'a parent of mdevs': ('acme-css', {
        'sys/devices/acme-css/mdev_supported_types/acme-1/device_api':
            'vfio-pci\n'},
        {'sys/class/mdev_bus/acme-css': '../../devices/acme-css'}),
    'an RDMA device': ('acme_0', {
        f'{_GPU}/infiniband/acme_0/fw_ver': '22.39.1048\n'}, {}),
    'an NVMe controller': ('nvme-acme', {
        f'{_GPU}/nvme/nvme-acme/firmware_rev': 'GDC5902Q\n'}, {}),
    "a function's vfio device": ('acme0', {f'{_GPU}/vfio-dev/acme0/dev': ''},
                                 {}),
    'a disk that is mounted': ('SN12345678', {
        'proc/1/mountinfo': '1 1 0:40 / / rw - x /dev/SN12345678 rw\n'},
        _disk('SN12345678')),
    'a disk that a log is on': ('SN12345678', {
        'proc/1/mountinfo': '1 1 8:1 / / rw - xfs /dev/sdb '
                            'rw,logdev=/dev/SN12345678\n'},
        _disk('SN12345678')),
    'a disk that is mounted, in a table': ('SN12345678', {
        'proc/1/mounts': '/dev/SN12345678 / ext4 rw\n'},
        _disk('SN12345678')),
    'a disk that is swapped to': ('SN12345678', {
        'proc/1/mountinfo': '',
        'proc/swaps': 'Filename\n/dev/SN12345678 partition\n'},
        _disk('SN12345678')),
    'a disk that has a file system': ('SN12345678', {
        'sys/fs/ext4/SN12345678/x': ''}, _disk('SN12345678')),
    "a partition where only disks are listed": ('md_acme', {
        'proc/1/mounts': '/dev/md_acme1 / ext4 rw\n',
        f'sys/{_DISK_AT}/block/md_acme/md_acme1/dev': '9:1\n'}, {
        'sys/block/md_acme': f'../{_DISK_AT}/block/md_acme'}),
    'what a disk is part of': ('acme-vg', {
        f'sys/{_DISK_AT}/block/sda/holders/acme-vg/x': ''}, _disk('sda')),
    'a file system of several disks': (_ID4, {
        f'sys/fs/btrfs/{_ID4}/devices/sda/x': ''}, _disk('sda')),
    'a pool': ('acme-tank', {
        'proc/spl/kstat/zfs/acme-tank/io': '',
        f'sys/{_DISK_AT}/block/sda/dev': '8:0\n',
        'run/udev/data/b8:0': 'E:ID_FS_TYPE=zfs_member\n'
                              'E:ID_FS_LABEL=acme-tank\n'}, _disk('sda')),
    'an iSCSI target': ('iqn.2026-01.org.acme:disk', {
        'proc/1/mounts': '/dev/sda / ext4 rw\n'},
        _disk('sda', 'host6/session1/iqn.2026-01.org.acme:disk/block')),
    'a bus of Hyper-V': (_ID4, {
        'proc/1/mounts': '/dev/sda / ext4 rw\n'},
        _disk('sda', f'VMBUS:01/{_ID4}/block')),
    'an NVMe subsystem': ('nvme-subsys-acme', {
        'proc/1/mounts': '/dev/nvme0n1 / ext4 rw\n'}, {
        'sys/class/block/nvme0n1': '../../devices/virtual/nvme-subsystem/'
                                   'nvme-subsys-acme/nvme0n1',
        'sys/devices/virtual/nvme-subsystem/nvme-subsys-acme/nvme0':
            f'../../../../{_DISK_AT[8:]}/nvme/nvme0'}),
    'an FPGA manager': ('acme-manager', {
        f'{_GPU}/fpga_manager/acme-manager/state': 'write error\n'}, {
        'sys/class/fpga_manager/acme-manager':
            f'../../{_GPU[4:]}/fpga_manager/acme-manager'}),
    'an FPGA region': ('acme-region', {
        f'{_GPU}/fpga_region/acme-region/compat_id': '0' * 31 + '1\n'}, {
        'sys/class/fpga_region/acme-region':
            f'../../{_GPU[4:]}/fpga_region/acme-region'}),
    'an FPGA port': ('SN12345678', {
        f'{_GPU}/fpga_region/region0/dfl-port.SN12345678/afu_id':
            '0' * 31 + '1\n'}, {
        'sys/class/fpga_region/region0':
            f'../../{_GPU[4:]}/fpga_region/region0'}),
    'a NUMA node': ('node-of-acme', {
        'sys/devices/system/node/node-of-acme/x': ''}, {}),
    'an IOMMU group': ('acme-group', {}, {
        'sys/devices/pci0000:80/0000:83:00.0/iommu_group':
            '../../../kernel/iommu_groups/acme-group'}),
}


def _machine_with(files, links):
    base = build.sysfs(
        {'pci0000:80/0000:81:00.0': {'class': '0x020000\n'},
         'pci0000:80/0000:82:00.0': {'class': '0x010802\n'},
         'pci0000:80/0000:83:00.0': {}})
    return tree.Recording({**base.files, **files}, {**base.links, **links})


def _told(machine, what):
    """Return the facts read from a machine, with a star for each name."""
    return re.sub(what, '*', repr((_host(machine), fpga.read(machine))))


_ALIAS = r'name\d+(p\d+)?|0000000\d-0000-[45]000-8000-0{12}'


@pytest.mark.parametrize('what', _NAMED)
def test_foreign_name_gets_an_alias(what):
    marker, files, links = _NAMED[what]
    machine = _machine_with(files, links)
    recording = recorder.record(machine)
    assert marker in recorder.record(machine, identifying=True).dumps()
    assert marker not in recording.dumps()
    assert _told(recording, _ALIAS) == _told(machine,
                                             rf'{re.escape(marker)}\d?')
    again = recorder.record(recording)
    assert (again.files, again.links) == (recording.files, recording.links)


@pytest.mark.parametrize('path', [
    f'{_GPU}/vendor', f'{_GPU}/numa_node', f'{_GPU}/reset_method',
    f'{numa.NODES}/node0/cpulist', f'{numa.NODES}/node0/distance',
    f'{_GPU}/sriov_totalvfs', f'{_GPU}/resource',
    f'{_GPU}/infiniband/mlx5_0/fw_ver', f'{_GPU}/nvme/nvme0/firmware_rev',
    f'{_GPU}/vbios_version',
    f'{_GPU}/fpga_region/region0/dfl-fme.0/bitstream_id',
    f'{_TYPE}/available_instances', f'{_TYPE}/device_api', f'{_FPGA}/state',
    f'{_GPU}/fpga_region/region0/compat_id',
    f'{_GPU}/fpga_region/region0/dfl-port.0/afu_id',
    f'sys/{_DISK_AT}/block/sda/dev', 'proc/1/mountinfo', 'proc/1/mounts',
    'proc/swaps', 'proc/cmdline', 'proc/net/route', 'proc/net/if_inet6',
    'sys/module/vfio_pci/parameters/disable_denylist'])
@pytest.mark.parametrize('text', [
    '1 acme-SN12345678 2\n', 'x\npcie_acs_override=SN12345678',
    '0 0 acme-SN12345678 / / rw - ext4 none rw\n'])
def test_foreign_content_is_not_recorded(path, text):
    machine = _machine_with({path: text}, {
        'sys/class/fpga_region/region0':
            f'../../{_GPU[4:]}/fpga_region/region0',
        'sys/class/fpga_manager/fpga0': f'../../{_FPGA[4:]}',
        **_disk('sda')})
    recording = recorder.record(machine)
    assert path in recording.files
    assert 'SN12345678' not in recording.dumps()
    assert build.units(_host(recording)) == build.units(_host(machine))


@pytest.mark.parametrize('status, recorded', [
    ('reconfig CRC error\nreconfig fifo overflow error\n', None),
    ('board SN12345678\n', '? ?\n')])
def test_fpga_status_keeps_the_words_of_the_kernel(
        status, recorded):
    machine = _machine_with({f'{_FPGA}/state': 'write error\n',
                             f'{_FPGA}/status': status}, {
        'sys/class/fpga_manager/fpga0': f'../../{_FPGA[4:]}'})
    recording = recorder.record(machine)
    assert recording.text(f'{_FPGA}/state') == 'write error\n'
    assert recording.text(f'{_FPGA}/status') == (recorded or status)


def test_aliases_are_unique():
    names = ['acme0', 'acme1', 'name0', 'name2']
    machine = tree.Recording(links=dict(
        link for name in names for link in _port(name).items()))
    recorded = recorder.record(machine).names('sys/class/net')
    assert recorded == ['name0', 'name1', 'name2', 'name3']


@pytest.mark.parametrize('name', [
    'l1', 'l1-8gpu', 'l1-fpga', 'l1-kinds', 'l40s-modelled',
    'fpga-modelled'])
def test_names_of_the_kernel_are_kept(name):
    machine = build.recorded(name)
    assert recorder.record(machine).dumps() == recorder.record(
        machine, identifying=True).dumps()


def test_ports_named_by_mac_are_numbered_in_one_order():
    machine = tree.Recording(
        {'proc/net/route': 'Iface\nenx00aa00aa00aa\nwlx00bb00bb00bb\n'},
        {f'sys/class/net/{name}': f'../../devices/x/net/{name}'
         for name in ('wlx00bb00bb00bb', 'enx00aa00aa00aa')})
    recording = recorder.record(machine)
    assert recording.text('proc/net/route') == (
        'Iface\nname0\nname1\n')
    assert set(recording.links) == {'sys/class/net/name0',
                                    'sys/class/net/name1'}


@given(st.dictionaries(
    st.sampled_from([*host_use.MOUNTS, host_use.SWAPS, host_use.ROUTES,
                     host_use.ADDRESSES]),
    st.text() | st.text(alphabet=' -\n/devab0:1\t')))
def test_random_tables_can_be_recorded(files):
    machine = tree.Recording(files)
    recording = recorder.record(machine)
    assert _host(recording) == _host(machine)


def test_an_empty_machine_makes_an_empty_recording():
    recording = recorder.record(tree.Recording())
    assert (recording.files, recording.links, recording.folders) == (
        {}, {}, [])
