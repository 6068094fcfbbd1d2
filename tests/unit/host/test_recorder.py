# SPDX-License-Identifier: Apache-2.0
"""Recordings: all that the reader reads, and nothing that identifies."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_accel.host import reader
from nova_accel.host import recorder
from nova_accel.host import tree
from nova_accel.host import usage
from tests.unit import build

_NIC = 'sys/devices/pci0000:80/0000:81:00.0'
_MAC_NAME = 'enx001122334455'

_SECRETS = ('001122334455', '00:11:22:33:44:55', '20010db8', 'fe80',
            'C0A80001', '/srv/customer', 'customer-volume', 'SN12345678')


def _machine(root):
    """A machine that says a lot of itself."""
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


def test_whether_functions_can_be_reset_is_recorded(tmp_path):
    can, cannot, unknown = ({'config': '', 'reset': '',
                             'reset_method': 'flr bus\n'}, {'config': ''}, {})
    build.sysfs({f'pci0000:80/0000:8{number}:00.0': files for number, files
                 in enumerate((can, cannot, unknown))}).write(tmp_path)
    # It is for root to write, and for nobody to read.
    (tmp_path / 'sys/devices/pci0000:80/0000:80:00.0/reset').chmod(0o200)
    live = tree.open_tree(tmp_path)
    recording = recorder.record(live)
    assert [function.reset_methods
            for function in reader.read(recording).functions] == [
        ('flr', 'bus'), (), None]
    assert reader.read(recording) == reader.read(live)
    assert 'config' in recording.dumps()


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


def test_a_recording_says_nothing_that_identifies(tmp_path):
    text = recorder.record(_machine(tmp_path)).dumps()
    assert [secret for secret in _SECRETS if secret in text] == []
    assert str(tmp_path) not in text


def test_a_recording_is_the_same_host_but_for_names(tmp_path):
    machine = _machine(tmp_path)
    before, after = _host(machine), _host(recorder.record(machine))
    assert after.devices == before.devices
    assert [(refusal.address, refusal.reason.replace(
        _MAC_NAME, 'enx000000000000')) for refusal in before.refusals] == [
        (refusal.address, refusal.reason) for refusal in after.refusals]
    assert [refusal.reason for refusal in after.refusals] == [
        'the host uses it: network port enx000000000000 has an address',
        'the host uses it: disk sda is mounted']


def test_recording_twice_changes_nothing_more(tmp_path):
    once = recorder.record(_machine(tmp_path))
    again = recorder.record(once)
    assert (again.files, again.links) == (once.files, once.links)


def test_what_identifies_is_recorded_when_asked_for(tmp_path):
    machine = _machine(tmp_path)
    recording = recorder.record(machine, identifying=True)
    assert recording.text(f'{_NIC}/serial_number') == 'SN12345678\n'
    assert _MAC_NAME in recording.dumps()
    assert _host(recording) == _host(machine)


def test_of_the_command_line_only_what_matters_is_kept():
    machine = build.sysfs({'pci0000:80/0000:81:00.0': {}}, {
        'proc/cmdline': 'root=UUID=0d9d2ca2 pcie_acs_override=downstream\n'})
    assert recorder.record(machine).text('proc/cmdline') == (
        'pcie_acs_override=downstream\n')


def test_two_ports_named_by_mac_stay_two(tmp_path):
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
    ('rocex001122fffe334455', 'rocex0000000000000000'),
    ('ibx001122fffe334455', 'ibx0000000000000000'),
    ('iwx001122334455', 'iwx000000000000'), ('mlx5_0', 'mlx5_0'),
    ('rocex001122fffe3344556', 'rocex001122fffe3344556')])
def test_an_rdma_device_named_by_guid_has_another_name(name, recorded):
    path = 'sys/devices/pci0000:80/0000:81:00.0/infiniband'
    machine = build.sysfs({'pci0000:80/0000:81:00.0': {}},
                          {f'{path}/{name}/fw_ver': '22.39\n'})
    recording = recorder.record(machine)
    assert recording.names(path) == [recorded]
    assert _host(recording) == _host(machine)


@pytest.mark.parametrize('link', ['lower_', 'upper_'])
def test_a_port_named_by_mac_is_not_named_by_its_bridge_either(link):
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
def test_what_is_recorded_of_proc_is_what_the_reader_needs(
        path, text, recorded):
    assert recorder.record(tree.Recording({path: text})).files == {
        path: recorded}


def test_ports_named_by_mac_are_numbered_in_one_order():
    machine = tree.Recording(
        {'proc/net/route': 'Iface\nenx00aa00aa00aa\nwlx00bb00bb00bb\n'},
        {f'sys/class/net/{name}': f'../../devices/x/net/{name}'
         for name in ('wlx00bb00bb00bb', 'enx00aa00aa00aa')})
    recording = recorder.record(machine)
    assert recording.text('proc/net/route') == (
        'Iface\nenx000000000000\nwlx000000000001\n')
    assert set(recording.links) == {'sys/class/net/enx000000000000',
                                    'sys/class/net/wlx000000000001'}


@given(st.dictionaries(
    st.sampled_from([*usage.MOUNTS, usage.SWAPS, usage.ROUTES,
                     usage.ADDRESSES]),
    st.text() | st.text(alphabet=' -\n/devab0:1\t')))
def test_a_machine_that_talks_nonsense_can_be_recorded(files):
    machine = tree.Recording(files)
    recording = recorder.record(machine)
    assert _host(recording) == _host(machine)


def test_an_empty_machine_makes_an_empty_recording():
    recording = recorder.record(tree.Recording())
    assert (recording.files, recording.links, recording.folders) == (
        {}, {}, [])
