# SPDX-License-Identifier: Apache-2.0
"""PCI functions that the host itself uses."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_accel.host import host_use
from nova_accel.host import reader
from nova_accel.host import recorder
from nova_accel.host import tree
from nova_accel.host import zfs

_PCI = 'sys/devices/pci0000:00/0000:00:02.0'
_ID = '0f2e8a5c-6f1c-4d53-9a51-1c2d3e4f5a6b'
_SWAPS = 'Filename Type Size Used Priority\n'
_ROUTES = 'Iface Destination Gateway\n'


def _uses(files=(), links=(), folders=()):
    found, _problems = host_use.read(
        tree.Recording(dict(files), dict(links), folders))
    return {str(address): use for address, use in found.items()}


def _disk(name, at=f'{_PCI}/virtio0', number='254:0'):
    """Return files and links of a disk or of a partition."""
    path = f'{at}/block/{name}'
    return ({f'{path}/dev': f'{number}\n'},
            {f'{host_use.BLOCK}/{name}': f'../../{path[4:]}'})


def _mounts(*lines):
    return {host_use.MOUNTS[0]: ''.join(f'{line}\n' for line in lines)}


def test_machine_without_tables_uses_nothing():
    assert _uses() == {}
    assert _uses(*_disk('vda')) == {}


@pytest.mark.parametrize('mounts', host_use.MOUNTS)
@pytest.mark.parametrize('line', [
    '21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw',
    '21 1 254:0 / / rw - ext4 none rw',
    '21 1 0:40 /@ / rw - btrfs /dev/vda rw',
    '0 0 254:0 / / rw - fs /dev/vda',
])
def test_a_mounted_disk_is_in_use(mounts, line):
    files, links = _disk('vda')
    assert _uses({**files, mounts: line}, links) == {
        '0000:00:02.0': 'disk vda is mounted'}


def test_name_that_cannot_be_printed_is_quoted():
    files, links = _disk('vd\x1ba')
    assert _uses({**files, **_mounts('0 0 254:0 / / rw - fs none')},
                 links) == {'0000:00:02.0': r"'disk vd\x1ba is mounted'"}


@pytest.mark.parametrize('line', [
    '21 1 254:1 / / rw - ext4 /dev/vdb rw',
    '21 1 0:5 / /proc rw - proc proc rw',
    '21 1 254:01 / / rw - ext4 /dev/vdaa rw',
    '', 'x', '- -', '21 1', ' - ', '\0\ufffd',
])
def test_mounts_of_other_disks_do_not_count(line):
    files, links = _disk('vda')
    assert _uses({**files, **_mounts(line)}, links) == {}


@pytest.mark.parametrize('folder', ['ext4', 'f2fs', 'xfs'])
def test_disk_mounted_outside_the_container_is_in_use(folder):
    """nova-compute is in a container with its own process namespace."""
    files, links = _disk('vda')
    assert _uses({**files, **_mounts('9 1 0:30 / / rw - overlay overlay rw')},
                 links, [f'sys/fs/{folder}/vda', f'sys/fs/{folder}/stats']
                 ) == {'0000:00:02.0': 'disk vda is mounted'}


@pytest.mark.parametrize('option', ['logdev', 'rtdev'])
def test_a_further_disk_of_a_file_system_is_in_use(option):
    files, links = _disk('vda')
    assert _uses({**files, **_mounts(
        f'9 1 8:1 / / rw - xfs /dev/sda1 rw,{option}=/dev/vda,noquota')},
        links) == {'0000:00:02.0': 'disk vda is mounted'}


@pytest.mark.parametrize('mounts', host_use.TABLES)
@pytest.mark.parametrize('source, name', [
    ('/dev/vda1', 'vda1'), ('/dev/vda', 'vda')])
def test_recording_with_mount_tables_only_is_understood(mounts, source, name):
    """Other tools record sys/block, and mounts without device numbers."""
    path = f'{_PCI}/virtio0/block/vda'
    links = {'sys/block/vda': f'../{path[4:]}'}
    assert _uses({f'{path}/vda1/dev': '254:1\n',
                  mounts: f'{source} / ext4 rw 0 0\nproc /proc proc 0 0\n'},
                 links) == {'0000:00:02.0': f'disk {name} is mounted'}


@pytest.mark.parametrize('files, problems', [
    ({}, 1), ({host_use.MOUNTS[0]: ''}, 0), ({host_use.MOUNTS[1]: ''}, 0),
    ({host_use.TABLES[0]: ''}, 0)])
def test_missing_mounts_are_reported(files, problems):
    disk, links = _disk('vda')
    host = reader.read(tree.Recording({**disk, **files}, links))
    assert len(host.problems) == problems
    assert not problems or host.problems[0].startswith(
        'proc/1/mountinfo, beside sysfs_root, cannot be read')
    assert reader.read(tree.Recording(files)).problems == ()


def test_each_disk_of_a_file_system_on_several_is_in_use():
    disks = {'vda': '0000:00:02.0', 'vdb': '0000:00:03.0'}
    links = {}
    for name, at in disks.items():
        path = f'../../devices/pci0000:00/{at}/virtio/block/{name}'
        links[f'{host_use.BLOCK}/{name}'] = path
        links[f'{host_use.BTRFS}/{_ID}/devices/{name}'] = f'../../{path}'
    mounts = _mounts('1 1 0:40 / / rw - btrfs /dev/vda rw')
    machine = tree.Recording(mounts, links, [f'{host_use.BTRFS}/features'])
    for tree_ in (machine, recorder.record(machine)):
        assert {str(address): use for address, use
                in host_use.read(tree_)[0].items()} == {
            at: f'disk {name} is mounted' for name, at in disks.items()}
    assert _ID not in recorder.record(machine).dumps()


def test_each_disk_that_a_mount_names_is_in_use():
    """bcachefs has its own device number and several disks as source."""
    files, links = _disk('nvme0n1p2')
    machine = tree.Recording({**files, **_mounts(
        '1 1 0:40 / / rw - bcachefs /dev/nvme1n1:/dev/nvme0n1p2 rw')}, links)
    for tree_ in (machine, recorder.record(machine)):
        assert list(host_use.read(tree_)[0].values()) == [
            'disk nvme0n1p2 is mounted']


_POOL = {f'{zfs.POOLS}/secret/state': 'ONLINE\n', f'{zfs.POOLS}/arcstats': ''}
_ZPOOL = '1 1 0:40 / / rw - zfs secret/ROOT rw'


@pytest.mark.parametrize('pool, said, uses', [
    (_POOL, f'N:1\n{zfs.MEMBER}\nE:ID_FS_UUID=123\n', True),
    (_POOL, f'{zfs.LABEL}secret\n{zfs.MEMBER}\n', True),
    # The label of a guest or of an earlier use.
    (_POOL, f'{zfs.LABEL}secretly\n{zfs.MEMBER}\n', False),
    (_POOL, f'{zfs.LABEL}secret\nE:ID_FS_TYPE=ext4\n', False),
    (_POOL, 'E:ID_FS_TYPE=ext4\n', False),
    (_POOL, '', False),
    # An old label on a host without pools.
    ({f'{zfs.POOLS}/arcstats': ''}, zfs.MEMBER, False),
    ({}, zfs.MEMBER, False)])
def test_a_disk_of_a_pool_is_in_use(pool, said, uses):
    files, links = _disk('vda1', number='254:1')
    machine = tree.Recording({**files, **_mounts(_ZPOOL), **pool,
                              f'{zfs.UDEV}/b254:1': said}, links)
    recorded = recorder.record(machine)
    for tree_ in (machine, recorded):
        found, problems = host_use.read(tree_)
        assert list(found.values()) == [
            'disk vda1 is part of a ZFS pool'] * uses
        assert problems == []
    for word in ('secret', 'UUID'):
        assert word not in recorded.dumps()


def test_missing_udev_data_is_reported():
    files, links = _disk('vda')
    _found, problems = host_use.read(tree.Recording(
        {**files, **_mounts(_ZPOOL), **_POOL}, links))
    [problem] = problems
    assert problem.startswith('run/udev/data, beside sysfs_root, cannot be')


def test_mounted_partition_uses_the_function_of_its_disk():
    files, links = _disk('vda1', f'{_PCI}/virtio0/block/vda', '254:1')
    links = {'sys/class/block/vda1':
             '../../devices/pci0000:00/0000:00:02.0/virtio0/block/vda/vda1'}
    files = {f'{_PCI}/virtio0/block/vda/vda1/dev': '254:1\n'}
    assert _uses({**files, **_mounts('1 1 254:1 / / rw - ext4 x rw')},
                 links) == {'0000:00:02.0': 'disk vda1 is mounted'}


@pytest.mark.parametrize('swap', ['/dev/vda', 'vda'])
def test_swap_space_is_in_use(swap):
    files, links = _disk('vda')
    assert _uses({**files, host_use.SWAPS:
                  f'{_SWAPS}{swap} partition 1 0 -2\n'}, links) == {
        '0000:00:02.0': 'disk vda is swap space'}


def test_a_disk_under_something_stacked_is_in_use():
    files, links = _disk('vda')
    assert _uses(files, {**links, f'{_PCI}/virtio0/block/vda/holders/dm-0':
                         '../../../x'}) == {
        '0000:00:02.0': 'disk vda is part of dm-0'}


def test_disk_with_empty_holders_is_free():
    files, links = _disk('vda')
    assert _uses(files, links,
                 [f'{_PCI}/virtio0/block/vda/holders']) == {}


def test_a_multipath_namespace_uses_every_controller():
    subsystem = 'sys/devices/virtual/nvme-subsystem/nvme-subsys0'
    links = {'sys/class/block/nvme0n1':
             '../../devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1',
             f'{subsystem}/nvme0': '../../../pci0000:00/0000:81:00.0/nvme/x',
             f'{subsystem}/nvme1': '../../../pci0000:00/0000:82:00.0/nvme/x'}
    files = {f'{subsystem}/nvme0n1/dev': '259:0\n',
             **_mounts('1 1 259:0 / / rw - ext4 /dev/nvme0n1 rw')}
    assert _uses(files, links) == {
        '0000:81:00.0': 'disk nvme0n1 is mounted',
        '0000:82:00.0': 'disk nvme0n1 is mounted'}


def test_innermost_function_of_the_path_is_in_use():
    at = 'sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/ata1'
    files, links = _disk('sda', at)
    assert list(_uses({**files, **_mounts(
        '1 1 254:0 / / rw - ext4 /dev/sda rw')}, links)) == ['0000:01:00.0']


def test_function_that_provides_a_pci_domain_is_in_use():
    """Intel's VMD: its disks are in another PCI domain."""
    files, links = _disk('nvme0n1', (
        'sys/devices/pci0000:00/0000:00:0e.0/pci10000:00/10000:00:02.0/'
        '10000:01:00.0/nvme/nvme0'))
    assert list(_uses({**files, **_mounts(
        '1 1 254:0 / / rw - ext4 /dev/nvme0n1 rw')}, links)) == [
        '0000:00:0e.0', '10000:01:00.0']


def test_a_virtual_disk_uses_no_function():
    files, links = _disk('dm-0', 'sys/devices/virtual')
    assert _uses({**files, **_mounts('1 1 254:0 / / rw - ext4 x rw')},
                 links) == {}


def _port(name='eth0', at=_PCI):
    return {f'{host_use.NET}/{name}': f'../../{at[4:]}/net/{name}'}


@pytest.mark.parametrize('files, links, use', [
    ({}, {}, None),
    ({host_use.ROUTES: f'{_ROUTES}eth0 0000A8C0 0\n'}, {}, 'has an address'),
    ({host_use.ADDRESSES: 'fe80 02 40 20 80 eth0\n'}, {}, 'has an address'),
    ({host_use.ADDRESSES: 'fe80 02 40 20 80 eth00\n'}, {}, None),
    ({host_use.ROUTES: 'eth0 is not a header\n'}, {}, None),
    ({host_use.ROUTES: '\n\0\n \n', host_use.ADDRESSES: '\n \n'}, {}, None),
    ({}, {f'{_PCI}/net/eth0/master': '../../../virtual/net/br0'},
     'belongs to br0'),
    ({}, {f'{_PCI}/net/eth0/upper_vlan7': '../x'}, 'is under vlan7'),
    ({}, {f'{_PCI}/net/eth0/lower_eth1': '../x'}, None),
    ({f'{_PCI}/net/eth0/address': 'x'}, {}, None),
])
def test_a_port_is_in_use_by_address_or_by_what_is_stacked_on_it(
        files, links, use):
    expected = {} if use is None else {
        '0000:00:02.0': f'network port eth0 {use}'}
    assert _uses(files, {**_port(), **links}) == expected


def test_port_without_a_pci_function_is_ignored():
    assert _uses({host_use.ROUTES: f'{_ROUTES}lo 0 0\n'},
                 _port('lo', 'sys/devices/virtual')) == {}


def test_function_with_two_uses_is_reported_once():
    files, links = _disk('vda')
    assert len(_uses({**files, host_use.ROUTES: f'{_ROUTES}eth0 0 0\n',
                      **_mounts('1 1 254:0 / / rw - x /dev/vda rw')},
                     {**links, **_port()})) == 1


@given(st.dictionaries(
    st.sampled_from([*host_use.MOUNTS, host_use.SWAPS, host_use.ROUTES,
                     host_use.ADDRESSES, f'{_PCI}/virtio0/block/vda/dev']),
    st.text() | st.text(alphabet=' -\n/devab0:1\t')))
def test_random_text_anywhere_raises_nothing(files):
    _files, links = _disk('vda')
    assert set(_uses(files, {**links, **_port()})) <= {'0000:00:02.0'}


@pytest.mark.parametrize('files, warned', [
    ({host_use.KTHREADD: 'kthreadd\n'}, False),
    ({host_use.KTHREADD: 'bash\n'}, True),
    ({}, True),
])
def test_process_1_of_a_container_is_a_problem(monkeypatch, files, warned):
    disk, links = _disk('vda')
    machine = tree.Recording({**disk, **_mounts(), **files}, links, ())
    assert host_use.read(machine)[1] == []
    monkeypatch.setattr(tree, 'is_live', lambda found: found is machine)
    problems = host_use.read(machine)[1]
    assert any('is not the host' in text for text in problems) == warned
