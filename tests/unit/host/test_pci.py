# SPDX-License-Identifier: Apache-2.0
"""PCI functions in sysfs: complete, malformed or just disappearing."""

import os

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_accel.core import model
from nova_accel.host import pci
from nova_accel.host import reader
from nova_accel.host import tree
from nova_accel.host import vfio
from tests.unit import build

_AT = 'pci0000:80/0000:80:01.0/0000:81:00.0'
_NAME = '0000:81:00.0'


def _read(**changes):
    """Return the function that is read, or the problem."""
    found, problems = pci.read(build.sysfs({_AT: changes}))
    assert len(found) + len(problems) == 1
    return found[0] if found else problems[0]


def test_function_is_read_with_all_attributes():
    recording = build.sysfs({_AT: {
        'driver': '../../../../bus/pci/drivers/nvidia',
        'sriov_totalvfs': '16\n', 'sriov_numvfs': '4\n'}},
        folders=[f'sys/devices/{_AT}/mdev_supported_types/nvidia-{number}'
                 for number in (474, 475)])
    [function], problems = pci.read(recording)
    assert problems == []
    assert function == model.Function(
        address=build.address(_NAME), vendor_id='10de', product_id='2330',
        class_code=0x030200, subsystem_vendor_id='10de',
        subsystem_product_id='16c1', revision=0xa1,
        location=model.Location(1, 'pci0000:80', ('0000:80:01.0',)),
        iommu_group='0', driver='nvidia', total_vfs=16, num_vfs=4,
        mdev_types=(model.MdevType('nvidia-474', None),
                    model.MdevType('nvidia-475', None)))


def test_names_that_cannot_be_printed_are_quoted():
    """A recording of a stranger may have sequences for a terminal."""
    [function], _problems = pci.read(build.sysfs({
        'pci\x1b:80/0000:81:00.0': {'driver': '../../drivers/a\u2028b',
                                   'iommu_group': '../../iommu_groups/\r'}}))
    assert (function.driver, function.iommu_group, function.location.root) == (
        r"'a\u2028b'", r"'\r'", r"'pci\x1b:80'")


@pytest.mark.parametrize('facts, speed, width', [
    ({}, 32.0, 16), ({'class': '0x060400\n'}, 32.0, 16),
    ({'class': '0x020000\n', 'max_link_speed': '8 GT/s\n'}, 8.0, 16),
    ({'max_link_speed': 'Unknown\n', 'max_link_width': '255\n'}, None, None),
    ({'max_link_speed': None, 'max_link_width': None}, None, None),
    # A virtual function; a function that is neither card nor bridge.
    ({'physfn': '../0000:81:00.0'}, None, None),
    ({'class': '0x088000\n'}, None, None)])
def test_what_the_link_could_do_is_read(facts, speed, width):
    function = _read(**{'max_link_speed': '32.0 GT/s PCIe\n',
                        'max_link_width': '16\n', **facts})
    assert (function.max_link_speed, function.max_link_width) == (speed, width)


def test_number_of_vfs_is_read_without_the_device_lock(tmp_path, monkeypatch):
    """During a reset of the card, a read of sriov_numvfs waits."""
    build.sysfs({_AT: {'sriov_totalvfs': '16\n', 'sriov_numvfs': '2\n',
                       'virtfn0': '../0000:81:00.1',
                       'virtfn1': '../0000:81:00.2'}}).write(tmp_path)
    machine, read = tree.Directory(tmp_path / 'sys'), []
    text = machine.text
    monkeypatch.setattr(machine, 'text', lambda path: (
        read.append(path.rpartition('/')[-1]) or text(path)))
    monkeypatch.setattr(tree, 'is_live', lambda _tree: True)
    [function], _problems = pci.read(machine)
    assert function.num_vfs == 2
    assert 'sriov_totalvfs' in read
    assert 'sriov_numvfs' not in read


def test_virtual_function_has_its_physfn():
    assert _read(physfn='../0000:81:00.7').physfn == build.address(
        '0000:81:00.7')


_SWITCH = 'pci0000:80/0000:80:01.0/0000:81:00.0'


def _switches(*devices):
    """Return the switch of each device below the machine's switch.

    :param devices: path and changes to attributes
    """
    found, problems = pci.read(build.sysfs({
        f'{_SWITCH}/{path}': changes for path, changes in devices}))
    assert problems == []
    return [function.location.switch for function in found]


_NIC = ('0000:82:01.0/0000:83:00.0', {})
_OWN = '0000:82:00.0/0000:84:00.0'
_BEHIND = f'{_OWN}/0000:85:00.0'


@pytest.mark.parametrize('card', [
    [('0000:86:00.0', {}), ('0000:86:00.1', {'class': '0x040300\n'})],
    [('0000:86:00.0', {}), ('0000:86:01.0', {'physfn': '../0000:86:00.0'}),
     ('0000:87:00.0', {'physfn': '../0000:86:00.0'})],
])
def test_switch_with_one_card_is_ignored(card):
    devices = [(f'{_BEHIND}/{name}', changes) for name, changes in card]
    assert _switches(_NIC, *devices) == ['0000:81:00.0'] * (len(card) + 1)
    # Without the NIC, the machine's switch has one card, too.
    assert _switches(*devices) == [None] * len(card)


def test_switch_with_several_cards_is_kept():
    assert _switches(_NIC, (f'{_BEHIND}/0000:86:00.0', {}), (
        f'{_OWN}/0000:85:01.0/0000:87:00.0', {})) == [
        '0000:81:00.0', '0000:84:00.0', '0000:84:00.0']


def test_switch_with_a_card_and_its_audio_is_ignored():
    """Intel's Arc has two slots behind its own switch."""
    sound = {'class': '0x040300\n'}
    assert _switches(_NIC, (f'{_BEHIND}/0000:86:00.0', {}), (
        f'{_OWN}/0000:85:04.0/0000:87:00.0', sound)) == ['0000:81:00.0'] * 3


@pytest.mark.parametrize('says, driver, denied', [
    ('N\n', 'c6xxvf', True), ('Y\n', 'c6xxvf', False),
    (None, 'c6xxvf', False), ('N\n', 'vfio-pci', True)])
def test_devices_on_the_denylist_are_denied(says, driver, denied):
    ids = {'vendor': '0x8086\n', 'driver': f'../../bus/pci/drivers/{driver}'}
    files = {vfio.PARAMETER: says} if says else {}
    found, _problems = pci.read(build.sysfs({
        'pci0000:80/0000:81:00.0': {**ids, 'device': '0x37c9\n'},
        'pci0000:80/0000:82:00.0': {**ids, 'device': '0x4941\n'}}, files))
    assert [function.denied for function in found] == [denied, False]


@pytest.mark.parametrize('driver, group, offered', [
    ('vfio-pci', 'vfio-noiommu', None), ('vfio-pci', None, '7'),
    ('vfio-pci', 'other', '7')])
def test_noiommu_group_is_ignored(driver, group, offered):
    files = {'sys/kernel/iommu_groups/7/name': f'{group}\n'} if group else {}
    [function], _problems = pci.read(build.sysfs({
        'pci0000:80/0000:81:00.0': {
            'driver': f'../../../bus/pci/drivers/{driver}',
            'iommu_group': '../../../kernel/iommu_groups/7'}}, files))
    assert function.iommu_group == offered


@pytest.mark.parametrize('driver, enable, is_open', [
    ('vfio-pci', '1\n', True), ('mlx5_vfio_pci', '2\n', True),
    ('vfio-pci', '0\n', False), ('vfio-pci', None, False),
    ('nvme', '1\n', False)])
def test_enabled_function_of_a_vfio_driver_is_open(driver, enable, is_open):
    [function], _problems = pci.read(build.sysfs({
        'pci0000:80/0000:81:00.0': {
            'driver': f'../../bus/pci/drivers/{driver}', 'enable': enable}}))
    assert function.open is is_open


@pytest.mark.parametrize('text, node', [
    ('0', 0), ('3\n', 3), ('-1\n', None), (None, None), ('', None),
    ('x', None), ('\0\xff', None)])
def test_a_numa_node_is_a_number_or_unknown(text, node):
    assert _read(numa_node=text).location.numa_node == node


@pytest.mark.parametrize('text, node, cpuless_node', [
    ('2\n', 0, 2), ('0\n', 0, None), ('3\n', 3, None), ('-1\n', None, None)])
def test_function_on_a_node_without_cpus_counts_as_on_the_nearest(
        text, node, cpuless_node):
    [function], _problems = pci.read(build.sysfs({_AT: {'numa_node': text}}),
                                     {2: 0})
    assert (function.location.numa_node,
            function.location.cpuless_node) == (node, cpuless_node)


@pytest.mark.parametrize('changes, field, value', [
    ({'sriov_totalvfs': None}, 'total_vfs', 0),
    ({'sriov_numvfs': 'x'}, 'num_vfs', 0),
    ({'sriov_numvfs': '-3'}, 'num_vfs', 0),
    ({'revision': None}, 'revision', 0),
    ({'revision': 'x'}, 'revision', 0),
    ({'subsystem_vendor': None}, 'subsystem_vendor_id', ''),
    ({'subsystem_vendor': ''}, 'subsystem_vendor_id', ''),
    ({'subsystem_device': '0x12345'}, 'subsystem_product_id', ''),
    ({'iommu_group': None}, 'iommu_group', None),
    ({'driver': None}, 'driver', None),
    ({'physfn': None}, 'physfn', None),
])
def test_optional_attribute_missing_or_malformed_has_a_default(
        changes, field, value):
    assert getattr(_read(**changes), field) == value


@pytest.mark.parametrize('changes, says', [
    ({'vendor': None}, 'its vendor is missing'),
    ({'device': None}, 'its device is missing'),
    ({'class': None}, 'its class is missing'),
    ({'vendor': ''}, "its vendor is '', not a number"),
    ({'vendor': '\0\ufffd'}, "its vendor is '\\x00�', not a number"),
    ({'vendor': '0x10de\n0x10de\n'}, "'0x10de\\n0x10de\\n', not a number"),
    ({'device': '0x12345'}, 'its device is not 16 bits wide'),
    ({'device': '-1'}, 'its device is not 16 bits wide'),
    ({'class': 'x' * 100_000}, 'not a number'),
    ({'physfn': '../nonsense\n'}, "not a PCI address: 'nonsense\\n'"),
])
def test_mandatory_attribute_missing_or_malformed_is_reported(changes, says):
    problem = _read(**changes)
    assert problem.startswith(f"PCI device '{_NAME}': ")
    assert problem.endswith('; the device is ignored')
    assert says in problem
    assert '\n' not in problem
    assert len(problem) < 300


def test_bars_are_read():
    assert _read(resource=build.H100_RESOURCE).bars == (
        model.Bar(0, 16 << 20), model.Bar(2, 128 << 30),
        model.Bar(4, 32 << 20))


def test_flags_decide_the_kind_of_a_bar():
    found = _read(resource=build.resource(
        (1 << 24, build.MEMORY), (128, 0x40101),
        (1 << 20, build.MEMORY | 0x2000), (1 << 20, build.MEMORY | 0x100000),
        None, None, (1 << 19, 0x46200), (1 << 30, build.WIDE_MEMORY)))
    assert found.bars == (
        model.Bar(0, 1 << 24, False, False), model.Bar(2, 1 << 20, False),
        model.Bar(3, 1 << 20, True, False))


def test_bar_without_address_has_a_size():
    assert _read(resource='0x0000000000000000 0x0000001fffffffff '
                 '0x000000002014220c\n' + 12 * f'{build.resource()[:57]}'
                 ).bars == (model.Bar(0, 128 << 30),)


def test_bars_are_unknown_without_resource():
    assert _read(resource=None).bars is None
    assert _read(resource=build.resource()).bars == ()


@pytest.mark.parametrize('text, says', [
    ('', "its resource is '', not ranges"),
    ('x' * 100_000, 'not ranges'),
    (build.resource()[:57 * 5], 'not ranges'),
    ('\0\ufffd\n' * 13, 'not ranges'),
    (build.resource((3 << 20, build.MEMORY)), 'its BAR 0 is from 0x'),
    ('0x2000 0x1000 0x200\n' + build.resource(), 'not a power of two'),
])
def test_malformed_resource_is_reported_and_the_device_is_kept(text, says):
    [function], [problem] = pci.read(build.sysfs({_AT: {'resource': text}}))
    assert function.bars is None
    assert problem.startswith(f"PCI device '{_NAME}': ") and says in problem
    assert problem.endswith('the size of its memory is unknown')
    assert '\n' not in problem and len(problem) < 300


_LINE = st.tuples(*[st.integers(0, (1 << 64) - 1)] * 3).map(
    lambda numbers: '0x{:016x} 0x{:016x} 0x{:016x}'.format(*numbers))


@given(st.one_of(st.text(), st.lists(st.one_of(_LINE, st.text(max_size=60)),
                                     max_size=17).map('\n'.join)))
def test_device_is_kept_with_any_resource(text):
    found, problems = pci.read(build.sysfs({_AT: {'resource': text}}))
    assert len(found) == 1 and len(problems) <= 1
    assert (found[0].bars is None) == bool(problems)
    for bar in found[0].bars or ():
        assert bar.size & (bar.size - 1) == 0 < bar.size
        assert 0 <= bar.number < 6


@pytest.mark.parametrize('name', ['', 'nonsense', '0000:81:00', 'a\nb'])
def test_malformed_device_name_is_reported(name):
    found, problems = pci.read(tree.Recording(
        links={f'{pci.DEVICES}/{name}x': '../../../devices/y'}))
    assert found == []
    assert len(problems) == 1
    assert '\n' not in problems[0]


def test_malformed_device_hides_no_other():
    found, problems = pci.read(build.sysfs({
        _AT: {'vendor': None}, 'pci0000:80/0000:82:00.0': {}}))
    assert [str(function.address) for function in found] == ['0000:82:00.0']
    assert len(problems) == 1


@pytest.mark.parametrize('path, root, ports', [
    ('pci0000:80/0000:81:00.0', 'pci0000:80', ()),
    ('pci0000:80/0000:80:01.0/0000:81:00.0', 'pci0000:80',
     ('0000:80:01.0',)),
    ('pci0000:40/0000:40:00.0/0000:41:00.0/0000:42:01.0/0000:81:00.0',
     'pci0000:40', ('0000:40:00.0', '0000:41:00.0', '0000:42:01.0')),
    ('pci0000:00/0000:00:0e.0/pci10000:00/10000:00:02.0/10000:e1:00.0',
     'pci0000:00', ('0000:00:0e.0', '10000:00:02.0')),
    ('platform/x.pcie/pci0004:00/0004:00:00.0/0004:81:00.0',
     'pci0004:00', ('0004:00:00.0',)),
    ('LNXSYSTM:00/odd/0000:81:00.0', '', ()),
])
def test_location_is_read_from_the_path(path, root, ports):
    [function], problems = pci.read(build.sysfs({path: {}}))
    assert problems == []
    assert function.location == model.Location(1, root, ports)


def test_a_domain_of_more_than_16_bits_is_read():
    path = 'pci0000:00/0000:00:0e.0/pci10000:00/10000:00:02.0/10000:e1:00.0'
    [function], _problems = pci.read(build.sysfs({path: {}}))
    assert function.address == model.PciAddress(0x10000, 0xe1, 0, 0)


class _Vanishing:
    """A Tree whose files disappear after a number of reads."""

    def __init__(self, under, reads):
        self._under, self._left = under, reads

    def names(self, path):
        return self._under.names(path)

    def link(self, path):
        return self._under.link(path) if self._left > 0 else None

    def has(self, path):
        return self._left > 0 and self._under.has(path)

    def text(self, path):
        self._left -= 1
        return self._under.text(path) if self._left >= 0 else None


@pytest.mark.parametrize('reads', range(12))
def test_device_removed_during_the_reading_is_complete_or_ignored(reads):
    host = reader.read(_Vanishing(build.sysfs({_AT: {}}), reads),
                       build.entries({}))
    assert len(host.functions) + len(host.problems) == 1
    for function in host.functions:
        assert function.ids == '10de:2330'
    if reads < 2:
        assert 'is missing' in host.problems[0]


def test_looping_and_half_gone_entries_are_reported_not_raised(tmp_path):
    build.sysfs({_AT: {}}).write(tmp_path)
    devices = tmp_path / pci.DEVICES
    (devices / '0000:90:00.0').symlink_to('0000:90:00.0')
    (devices / '0000:91:00.0').symlink_to('../../../devices/gone')
    (devices / '0000:92:00.0').mkdir()
    (devices / '0000:93:00.0').write_text('not a directory')
    os.mkfifo(devices / '0000:94:00.0')
    found, problems = pci.read(tree.Directory(tmp_path / 'sys'))
    assert [str(function.address) for function in found] == [_NAME]
    assert len(problems) == 5


@pytest.mark.parametrize('content', [
    b'', b'\xff\xfe\0', b'0x10de' * 100_000, b'-', b'0x', b'\n\n', b'0b1'])
def test_any_bytes_in_any_file_of_a_real_directory_raise_nothing(
        tmp_path, content):
    build.sysfs({_AT: {}}).write(tmp_path)
    for name in (*build.ATTRIBUTES, 'sriov_numvfs', 'sriov_totalvfs'):
        (tmp_path / 'sys' / 'devices' / _AT / name).write_bytes(content)
    found, problems = pci.read(tree.Directory(tmp_path / 'sys'))
    assert len(found) + len(problems) == 1
    assert not any('\n' in problem for problem in problems)


_NUMBERS = st.from_regex(r'\s*-?(0x)?[0-9a-f]{1,12}\n?', fullmatch=True)


@given(st.dictionaries(
    st.sampled_from([*build.ATTRIBUTES, 'sriov_numvfs', 'sriov_totalvfs',
                     'iommu_group', 'driver', 'physfn']),
    st.none() | st.text() | _NUMBERS | st.just('../0000:82:00.0')))
def test_random_attributes_cause_at_most_one_problem_per_device(changes):
    other = 'pci0000:80/0000:82:00.0'
    host = reader.read(build.sysfs({_AT: changes, other: {}}),
                       build.entries({}))
    assert len(host.problems) <= 1
    assert not any('\n' in problem for problem in host.problems)
    assert '0000:82:00.0' in {str(f.address) for f in host.functions}
    assert len(host.functions) + len(host.problems) == 2
