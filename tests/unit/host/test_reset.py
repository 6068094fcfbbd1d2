# SPDX-License-Identifier: Apache-2.0
"""Resets on a modelled machine whose kernel can fail."""

import contextlib
import fcntl
import os
import pathlib
import struct
import tempfile
from unittest import mock

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from nova_accel.core import model
from nova_accel.core.device_spec import reset_methods
from nova_accel.host import operate
from nova_accel.host import operations
from nova_accel.host import pci
from nova_accel.host import reader
from nova_accel.host import reset
from nova_accel.host import tree as trees
from tests.unit import build
from tests.unit.host import vfio

_ROOT = 'pci0000:80'
_CAN = {'config': '', 'reset': '', 'reset_method': 'flr bus\n'}
_VF = {**_CAN, 'device': '0x2331\n',
       'physfn': '../0000:85:00.0'}
_DRIVERS = '../../../bus/pci/drivers'

#: A card with two virtual functions; a card of two functions that share an
#: IOMMU group; a card with a driver of the host's; a card with vfio-pci; and
#: two cards of two functions that can only be reset together: by their bridge,
#: and by vfio.
_MACHINE = {
    f'{_ROOT}/0000:85:00.0': {**_CAN, 'sriov_numvfs': '2\n',
                              'sriov_totalvfs': '2\n'},
    f'{_ROOT}/0000:85:00.1': _VF,
    f'{_ROOT}/0000:85:00.2': _VF,
    f'{_ROOT}/0000:86:00.0': {**_CAN, 'iommu_group': '../x/20'},
    f'{_ROOT}/0000:86:00.1': {**_CAN, 'iommu_group': '../x/20'},
    f'{_ROOT}/0000:87:00.0': {**_CAN, 'driver': f'{_DRIVERS}/nvidia',
                              'enable': '1\n'},
    f'{_ROOT}/0000:88:00.0': {**_CAN, 'driver': f'{_DRIVERS}/vfio-pci',
                              'enable': '0\n'},
    f'{_ROOT}/0000:80:02.0': {'class': '0x060400\n', 'vendor': '0x8086\n',
                              'reset_subordinate': ''},
    **{f'{_ROOT}/0000:80:02.0/0000:89:00.{number}': {
        'config': '', 'iommu_group': '../x/21'} for number in range(2)},
    f'{_ROOT}/0000:80:03.0': {'class': '0x060400\n', 'vendor': '0x8086\n'},
    **{f'{_ROOT}/0000:80:03.0/0000:8a:00.{number}': {
        'config': '', 'iommu_group': '../x/22', 'driver_override': '(null)\n',
        'driver': f'{_DRIVERS}/vfio-pci' if number else None,
        'reset_method': 'pm\n'} for number in range(2)},
}
_BRIDGE, _BY_VFIO = '0000:80:02.0', '0000:80:03.0'
_FOLDERS = 'sys/bus/pci/drivers/vfio-pci', 'sys/class/vfio'


class _Kernel:
    """Simulate writes, and track which functions have data of a server."""

    def __init__(self, root):
        self.tree = trees.open_tree(root)
        self._bus = pathlib.Path(root) / 'sys/bus/pci/devices'
        self.resets = []
        #: The reset_method at each of these resets.
        self.methods = []
        #: Methods that disappeared, by function.
        self.gone = {}
        self.broken = set()
        #: Functions with data of a server in them.
        self.dirty = set()
        #: Functions whose last reset failed.
        self.failed = set()
        self.held = set()
        self.wrongs = []
        #: The driver that a probe binds, by function.
        self.drivers = {}
        self.root = pathlib.Path(root)
        self.open_vfio()

    def open_vfio(self, groups=True):
        self.vfio = vfio.Vfio(self.root, lambda names: self._reset(
            self._bridge_of(names), names), groups)
        for place in self._bus.iterdir():
            if self.driver(place.name) == 'vfio-pci':
                self.vfio.bind(place.name)

    def _bridge_of(self, names):
        return (self._bus / min(names)).resolve().parent.name

    def write(self, path, text):
        path = pathlib.Path(path)
        name = path.parent.name
        if path.name == 'drivers_probe':
            # Without a matching driver there is no error (drivers/base/bus.c).
            override = self.file(text, 'driver_override')
            if override.exists() and (
                    wanted := override.read_text().strip()) != '(null)':
                self.bind(text, wanted)
            elif text in self.drivers:
                self.bind(text, self.drivers[text])
            return
        if path.name == 'driver_override':
            path.write_text(text if text.strip() else '(null)\n')
            return
        if path.name == 'unbind':
            assert text == path.parent.parent.name
            (self._bus / text / 'driver').unlink()
            self.vfio.unbind(text)
            return
        assert (self._bus / name / path.name).exists()
        if path.name == 'reset_method':
            self._set_methods(name, text)
            return
        behind = path.name == 'reset_subordinate'
        self._reset(name, {
            below.name for below in (self._bus / name).glob('0000:*')
        } if behind else {name})

    def _set_methods(self, name, text):
        gone = self.gone.get(name, set())
        if text == 'default':
            text = ' '.join(method for method in ('flr', 'pm', 'bus')
                            if method not in gone)
        elif gone.intersection(text.split()):
            raise OSError(22, 'Invalid argument')
        self.file(name, 'reset_method').write_text(f'{text}\n')

    def _reset(self, name, functions):
        # These must never happen.
        self.wrongs += [f'{function} was reset under its user or driver'
                        for function in functions if function in self.held
                        or self.driver(function) not in (None, 'vfio-pci')]
        if functions & self.broken:
            self.failed |= functions
            self.dirty |= functions
            raise OSError(25, 'Inappropriate ioctl for device')
        self.resets.append(name)
        methods = self.file(name, 'reset_method')
        self.methods.append(methods.read_text().strip()
                            if methods.exists() else '')
        self.failed -= functions
        self.dirty -= functions

    def driver(self, name):
        link = self._bus / name / 'driver'
        return link.readlink().name if link.is_symlink() else None

    def bind(self, name, driver):
        link = self._bus / name / 'driver'
        link.unlink(missing_ok=True)
        link.symlink_to(f'{_DRIVERS}/{driver}')
        self.vfio.unbind(name)
        if driver == 'vfio-pci':
            self.vfio.bind(name)

    def file(self, name, attribute):
        return self._bus / name / attribute


@contextlib.contextmanager
def _kernel(machine=_MACHINE):
    with tempfile.TemporaryDirectory() as root:
        build.sysfs(machine, folders=_FOLDERS).write(root)
        kernel = _Kernel(root)
        before = os.listdir('/proc/self/fd')
        with (mock.patch.object(operations, 'write', kernel.write),
              mock.patch.object(operations.Operations, '_open_device',
                                lambda _self, path: kernel.vfio.open(path)),
              mock.patch.object(fcntl, 'ioctl', lambda *arguments:
                                kernel.vfio.ioctl(*arguments))):
            yield kernel
        assert kernel.wrongs == []
        assert os.listdir('/proc/self/fd') == before


@pytest.fixture
def kernel():
    with _kernel() as machine:
        yield machine


class _Node:
    """A simulated nova-compute: only the parts that reset devices."""

    def __init__(self, kernel, **keys):
        self.kernel = kernel
        self.resets = reset.Resets(lambda: self.now)
        self.entries = build.entries({'vendor_id': '10de', **keys})
        self.now = 0

    def read(self, states=None):
        return reader.read(self.kernel.tree, self.entries, states=(
            [self.resets.withheld] if states is None else states))

    def offered(self):
        return [unit for device in self.read().devices
                for region in device.regions for unit in region.available]

    def sweep(self, patience=600):
        host = self.read([])
        held = {build.address(name) for name in self.kernel.held}
        self.resets.forget(host)
        self.resets.used(held)
        for unit in self.resets.due(host, held, patience):
            self.resets.reset(self.kernel.tree, host, unit)

    def give(self, unit):
        """Start a server with an offered unit, if its reset works."""
        if not self.resets.reset(self.kernel.tree, self.read([]), unit):
            return False
        # The unit has no data of another server.
        assert not _names(unit) & (self.kernel.dirty | self.kernel.failed)
        self.resets.used(unit)
        self.kernel.held |= _names(unit)
        self.kernel.dirty |= _names(unit)
        return True


def _names(unit):
    return {str(address) for address in unit}


def _unit(node, name):
    return next(unit for unit in reset_methods.units(node.read({}))
                if name in _names(unit))


_FUNCTIONS = sorted(name for path in _MACHINE
                    if (name := path.rsplit('/', 1)[1]) not in (
                        _BRIDGE, _BY_VFIO, '0000:85:00.0'))


class _Scenario:
    """Random steps on units. A unit that failed to reset is never offered."""

    def __init__(self, kernel):
        self.kernel = kernel
        # The devices may have been used before nova-compute started.
        kernel.dirty = set(_FUNCTIONS)
        self.restart(None, None)
        self.units = {name: _unit(self.node, name) for name in _FUNCTIONS}

    def run_step(self, step, name):
        unit = self.units[name]
        if step not in _OF_FREE or not _names(unit) & self.kernel.held:
            getattr(self, step)(name, unit)
        for offered in self.node.offered():
            assert not _names(offered) & self.kernel.failed

    def give(self, _name, unit):
        if unit in self.node.offered():
            self.node.give(unit)

    def release(self, _name, unit):
        self.kernel.held -= _names(unit)

    def foreign_domain(self, _name, unit):
        """Start a domain that is not Nova's."""
        self.kernel.held |= _names(unit)
        self.kernel.dirty |= _names(unit)
        self.node.sweep()

    def bind(self, name, _unit):
        self.kernel.bind(name, 'nvidia')

    def break_reset(self, name, _unit):
        self.kernel.broken.add(name)

    def repair_reset(self, name, _unit):
        self.kernel.broken.discard(name)

    def sweep(self, _name, _unit):
        self.node.sweep()

    def later(self, _name, _unit):
        self.node.now += 600
        self.node.sweep()

    def restart(self, _name, _unit):
        # A restart forgets failures. A new reset detects them again.
        self.node, self.kernel.failed = _Node(self.kernel), set()


_OF_FREE = ('give', 'foreign_domain', 'bind')

_steps = st.lists(st.tuples(
    st.sampled_from([name for name in vars(_Scenario)
                     if not name.startswith('_') and name != 'run_step']),
    st.sampled_from(_FUNCTIONS)), min_size=20, max_size=40)


@settings(max_examples=20)
@given(_steps)
def test_no_server_gets_a_device_that_was_not_reset(steps):
    with _kernel() as kernel:
        scenario = _Scenario(kernel)
        for step in steps:
            scenario.run_step(*step)
        node = scenario.node
        # Units that work again are offered again.
        kernel.broken, kernel.held = set(), set()
        for name in _FUNCTIONS:
            kernel.file(name, 'driver').unlink(missing_ok=True)
        node.now += 600
        node.sweep()
        assert len(node.offered()) == 7
        assert not kernel.dirty | kernel.failed
        assert all(map(node.give, node.offered()))


def test_free_units_are_reset_once_at_the_start(kernel):
    node = _Node(kernel)
    kernel.held = {'0000:85:00.1'}
    node.sweep()
    assert sorted(kernel.resets) == [
        _BRIDGE, _BY_VFIO, '0000:85:00.2', '0000:86:00.0', '0000:86:00.1',
        '0000:88:00.0']
    node.sweep()
    assert len(kernel.resets) == 6


def test_card_is_reset_through_its_bridge(kernel):
    node = _Node(kernel)
    kernel.broken = {'0000:89:00.1'}
    node.sweep()
    assert _BRIDGE not in kernel.resets
    assert {str(address): reason for address, reason
            in node.resets.refused().items()} == {
        '0000:89:00.0': 'its reset failed: Inappropriate ioctl for device'}
    assert len(node.offered()) == 6


#: A card that QEMU emulates: a 32-bit BAR, one of 64 and one more of 32.
_RESOURCE = (
    '0x00000000feb00000 0x00000000feb0ffff 0x0000000000040200\n'
    '0x0000000000000000 0x0000000000000000 0x0000000000000000\n'
    '0x0000000204e00000 0x0000000204efffff 0x000000000014220c\n'
    '0x0000000000000000 0x0000000000000000 0x0000000000000000\n'
    '0x00000000feb14000 0x00000000feb14fff 0x0000000000040200\n'
    '0x0000000000000000 0x0000000000000000 0x0000000000000000\n')
_BARS = (0xfeb00000, 0, 0x04e0000c, 0x2, 0xfeb14000, 0)


def _header(*bars, kind=0):
    return struct.pack('<HHHHIBBBB6I24x', 0x10ee, 0x5004, 3, 0x10,
                       0x12000001, 0, 0, kind, 0, *bars)


def _lay_out(kernel, header, resource=_RESOURCE, name='0000:88:00.0'):
    kernel.file(name, 'config').write_bytes(header)
    kernel.file(name, 'resource').write_text(resource)
    return pci.has_lost_addresses(kernel.tree, build.address(name))


@pytest.mark.parametrize(('bars', 'lost'), [
    (_BARS, False),
    # A bridge can translate addresses.
    ((0x10000000, 0, 0x0000000c, 0x3, 0x20000000, 0), False),
    ((0, 0, 0x0000000c, 0, 0, 0), True),
    ((*_BARS[:2], 0x0000000c, 0, *_BARS[4:]), True),
    # The kernel saved and restored the all-ones of a dead function.
    ((0xffff0000, 0, 0xfff0000c, 0xffffffff, 0xfffff000, 0), True)])
def test_lost_addresses_of_bars_are_detected(kernel, bars, lost):
    assert _lay_out(kernel, _header(*bars)) is lost
    # A virtual function has no BARs of its own.
    assert not _lay_out(kernel, _header(*bars), name='0000:85:00.1')
    # The header or the ranges cannot be read.
    assert not _lay_out(kernel, _header(*bars)[:63])
    assert not _lay_out(kernel, _header(*bars), 'nonsense')
    # The header of a bridge has another layout.
    assert not _lay_out(kernel, _header(*bars, kind=0x81))
    # The kernel assigned no address.
    assert not _lay_out(kernel, _header(*bars), ''.join(
        f'0x{0:016x} 0x{size - 1 if size else 0:016x} 0x{flags:016x}\n'
        for size, flags in ((1 << 16, 0x20040200), *[(0, 0)] * 5)))


@given(st.binary(max_size=80), st.text())
def test_random_config_and_resource_raise_nothing(header, resource):
    with _kernel() as kernel:
        kernel.file('0000:88:00.0', 'config').write_bytes(header)
        kernel.file('0000:88:00.0', 'resource').write_bytes(
            resource.encode(errors='replace'))
        pci.has_lost_addresses(kernel.tree, build.address('0000:88:00.0'))


def test_reset_that_leaves_bars_without_addresses_fails(kernel):
    node = _Node(kernel)
    unit = _unit(node, '0000:88:00.0')
    _lay_out(kernel, _header(*_BARS))
    kernel.broken = {'0000:88:00.0'}
    node.sweep()
    assert unit not in node.offered()
    kernel.broken = set()
    _lay_out(kernel, _header(0, 0, 0xc, 0, 0, 0))
    node.now += 600
    node.sweep()
    assert '0000:88:00.0' in kernel.resets
    assert unit not in node.offered()
    assert 'its BARs lost their addresses' in str(node.resets.refused())
    # The operator removes the device and rescans the bus.
    _lay_out(kernel, _header(*_BARS))
    node.now += 600
    node.sweep()
    assert unit in node.offered()


@pytest.mark.parametrize('name', ['0000:88:00.0', '0000:85:00.1'])
def test_reset_fails_if_the_function_does_not_answer(kernel, name):
    """Some reset methods do not wait for the function."""
    node = _Node(kernel)
    unit = _unit(node, name)
    kernel.file(name, 'config').write_bytes(b'\xff' * 64)
    node.sweep()
    assert name in kernel.resets
    assert unit not in node.offered()
    assert 'it does not answer' in str(node.resets.refused())
    # A virtual function that answers has all-ones ids, too.
    kernel.file(name, 'config').write_bytes(b'\xff' * 4 + bytes(60))
    node.now += 600
    node.sweep()
    assert unit in node.offered()


#: A card of one function with a driver of the host's.
_SINGLE = '0000:8a:00.0'


@pytest.fixture
def single():
    with _kernel({f'{_ROOT}/0000:80:03.0/{_SINGLE}': {
            **_CAN, 'reset_method': 'flr pm bus\n',
            'driver': f'{_DRIVERS}/nvidia'}}) as machine:
        yield machine


_PINNED = [
    ({}, ['flr bus', 'bus']), ({'reset': 'flr'}, ['flr']),
    ({'reset': 'bus'}, ['bus'])]


@pytest.mark.parametrize('says, tried', _PINNED)
def test_reset_method_of_the_entry_is_used_and_restored(single, says, tried):
    """Afterwards the previous methods are restored."""
    node = _Node(single, **says)
    assert node.give(_unit(node, _SINGLE))
    assert single.methods == tried
    assert single.file(_SINGLE, 'reset_method').read_text() == 'flr pm bus\n'
    assert single.driver(_SINGLE) is None


@pytest.mark.parametrize('says, tried', _PINNED[1:])
def test_failed_method_is_not_replaced_by_another(single, says, tried):
    single.broken = {_SINGLE}
    node = _Node(single, **says)
    assert not node.give(_unit(node, _SINGLE))
    assert single.file(_SINGLE, 'reset_method').read_text() == 'flr pm bus\n'


def test_methods_that_disappeared_are_not_restored(single):
    single.gone[_SINGLE] = {'bus'}
    node = _Node(single, reset='flr')
    assert node.give(_unit(node, _SINGLE))
    assert single.file(_SINGLE, 'reset_method').read_text() == 'flr pm\n'


def test_bridge_with_another_function_is_not_reset(kernel):
    node = _Node(kernel)
    host = node.read({})
    kernel.file(_BRIDGE, '0000:89:00.2').mkdir()
    unit = _unit(node, '0000:89:00.0')
    assert not node.resets.reset(kernel.tree, host, unit)
    assert kernel.resets == []
    assert '0000:89:00.2 is behind it as well' in str(node.resets.refused())


def test_function_with_a_host_driver_is_reset_at_the_start_of_a_guest(kernel):
    node = _Node(kernel)
    node.sweep()
    name = '0000:87:00.0'
    assert name not in kernel.resets
    assert kernel.driver(name) == 'nvidia'
    assert node.give(_unit(node, name))
    assert name in kernel.resets
    assert kernel.driver(name) is None


def test_card_to_be_programmed_is_bound_to_its_driver_again(kernel):
    name = '0000:87:00.0'
    node = _Node(kernel, kind='fpga', program=['/program', '{bitstream}'])
    kernel.drivers[name] = 'nvidia'
    assert node.give(_unit(node, name))
    assert (kernel.resets, kernel.driver(name)) == ([name], 'nvidia')
    # A vfio driver stays bound.
    assert node.give(_unit(node, '0000:88:00.0'))
    assert kernel.driver('0000:88:00.0') == 'vfio-pci'


def test_card_that_no_driver_binds_again_is_withheld(kernel):
    node = _Node(kernel, kind='fpga', program=['/program', '{bitstream}'])
    unit = _unit(node, '0000:87:00.0')
    assert not node.give(unit)
    assert 'no driver took it again' in str(node.resets.refused())
    kernel.drivers['0000:87:00.0'] = 'nvidia'
    node.now += 600
    node.sweep()
    assert unit in node.offered()


def test_function_that_a_program_has_open_is_not_reset(kernel):
    kernel.file('0000:88:00.0', 'enable').write_text('1\n')
    node = _Node(kernel)
    node.sweep()
    [(address, reason)] = node.resets.refused().items()
    assert str(address) == '0000:88:00.0'
    assert 'a program has it open' in reason
    assert '0000:88:00.0' not in kernel.resets


def test_failed_reset_is_tried_again_after_the_interval(kernel):
    node = _Node(kernel)
    kernel.broken = {'0000:88:00.0'}
    node.sweep()
    kernel.broken = set()
    node.now = 599
    node.sweep()
    assert '0000:88:00.0' not in kernel.resets
    node.now = 600
    node.sweep()
    assert '0000:88:00.0' in kernel.resets
    assert node.resets.refused() == {}


_CARD = '0000:8a:00.0', '0000:8a:00.1'


def _facts(kernel):
    """Return the driver and the override of both functions of the card."""
    return [(kernel.driver(name), kernel.file(
        name, 'driver_override').read_text()) for name in _CARD]


def test_card_without_another_reset_is_reset_by_vfio(kernel):
    node, before = _Node(kernel), _facts(kernel)
    assert node.give(_unit(node, _CARD[0]))
    assert kernel.resets == [_BY_VFIO]
    assert _facts(kernel) == before


def test_driver_of_the_host_is_unbound_before_a_reset_by_vfio(kernel):
    kernel.bind(_CARD[0], 'nvidia')
    node = _Node(kernel)
    node.sweep()
    assert _BY_VFIO not in kernel.resets
    assert node.give(_unit(node, _CARD[0]))
    assert _BY_VFIO in kernel.resets
    assert [driver for driver, _override in _facts(kernel)] == [
        None, 'vfio-pci']


def test_the_override_of_an_operator_is_restored(kernel):
    kernel.file(_CARD[0], 'driver_override').write_text('pci-stub')
    node = _Node(kernel)
    assert node.give(_unit(node, _CARD[0]))
    assert _facts(kernel)[0] == (None, 'pci-stub')


def _without_groups(kernel):
    (kernel.root / 'sys/class/vfio').rmdir()
    (kernel.root / 'sys/class/misc/iommu').mkdir(parents=True)
    kernel.open_vfio(groups=False)


def _break_open(kernel):
    kernel.vfio.busy = {'dev/vfio/22'}


def _break_set(kernel):
    kernel.vfio.others = {'0000:8a:01.0'}


def _break_bind(kernel):
    kernel.bind = lambda name, driver: None


def _break_group(kernel):
    kernel.vfio.viable = False


def _break_reset(kernel):
    kernel.broken = set(_CARD)


@pytest.mark.parametrize('wrong, reason', [
    (_break_open, '/dev/vfio/22: another program has it open'),
    (_break_set, 'vfio would also reset 0000:8a:01.0'),
    (_break_bind, 'vfio-pci does not take 0000:8a:00.0'),
    (_break_group, 'a function in IOMMU group 22 has a driver that is not a '
     'vfio driver'),
    (_break_reset, 'Inappropriate ioctl for device')])
def test_failed_reset_by_vfio_leaves_drivers_as_they_were(
        kernel, wrong, reason):
    node, before = _Node(kernel), _facts(kernel)
    unit = _unit(node, _CARD[0])
    wrong(kernel)
    assert not node.give(unit)
    assert node.resets.refused() == {unit[0]: f'its reset failed: {reason}'}
    assert unit not in node.offered()
    assert _BY_VFIO not in kernel.resets
    assert _facts(kernel) == before


def _machine(facts, more=()):
    """Return the machine with other facts of the card that vfio resets."""
    machine = {**_MACHINE, **dict(more)}
    for path, changes in zip([path for path in _MACHINE if path.endswith(
            _CARD)], facts, strict=True):
        machine[path] = {**_MACHINE[path], **changes}
    return machine


def test_whole_unit_is_unbound_before_one_of_its_buses_is_reset():
    driver = {'driver': f'{_DRIVERS}/nvidia'}
    other = f'{_ROOT}/0000:80:04.0'
    more = {other: _MACHINE[f'{_ROOT}/{_BY_VFIO}'], **{
        f'{other}/0000:8b:00.{number}': {
            'config': '', 'iommu_group': '../x/22', 'reset_method': 'pm\n',
            'driver_override': '(null)\n', **driver} for number in range(2)}}
    with _kernel(_machine([driver, driver], more)) as kernel:
        node = _Node(kernel)
        unit = _unit(node, _CARD[0])
        assert len(unit) == 4
        assert node.give(unit)
        assert kernel.resets == [_BY_VFIO, '0000:80:04.0']


@pytest.mark.parametrize('groups', [(22, 23), (23, 22), (123, 99)])
def test_functions_of_several_iommu_groups_are_reset_together(groups):
    with _kernel(_machine([{'iommu_group': f'../x/{group}'}
                           for group in groups])) as kernel:
        operate.on(kernel.tree).reset_by_vfio(_CARD)
        assert kernel.resets == [_BY_VFIO]


@pytest.mark.parametrize('addresses, error', [
    ([], ValueError), ([_CARD[0], '0000:8A:00.0'], ValueError),
    ([_CARD[0], '0000:88:00.0'], ValueError),
    (['0000:80:02.0'], ValueError), (['0000:87:00.0'], ValueError),
    ([*_CARD, '0000:8a:00.7'], FileNotFoundError), (['x'], ValueError)])
def test_nothing_is_bound_for_invalid_functions(kernel, addresses, error):
    before = _facts(kernel)
    bind, bound = kernel.bind, []
    kernel.bind = lambda *names: bound.append(names) or bind(*names)
    with pytest.raises(error):
        operate.on(kernel.tree).reset_by_vfio(addresses)
    assert (bound, _facts(kernel)) == ([], before)


@pytest.mark.parametrize('times, resets', [(4, [_BY_VFIO]), (5, [])])
@pytest.mark.parametrize('groups', [True, False])
def test_locked_device_is_tried_again_for_a_moment(
        kernel, times, resets, groups):
    if not groups:
        _without_groups(kernel)
    kernel.vfio.locked = times
    node = _Node(kernel)
    with mock.patch('time.sleep'):
        node.give(_unit(node, _CARD[0]))
    assert kernel.resets == resets


@pytest.mark.parametrize('iommu', [1, 7, 2])
def test_other_iommus_of_vfio_are_used(kernel, iommu):
    kernel.vfio.iommu = iommu
    node = _Node(kernel)
    assert node.give(_unit(node, _CARD[0]))


def test_iommufd_is_used_if_programs_cannot_open_groups(kernel):
    _without_groups(kernel)
    node, before = _Node(kernel), _facts(kernel)
    assert node.give(_unit(node, _CARD[0]))
    assert kernel.resets == [_BY_VFIO]
    assert _facts(kernel) == before


@pytest.mark.parametrize('missing, reason', [
    ('sys/bus/pci/drivers/vfio-pci', 'vfio-pci, which resets all functions '
     'of a slot together, is not loaded'),
    ('sys/class/vfio', 'can only be used in a kernel with '
     'CONFIG_VFIO_GROUP or CONFIG_VFIO_DEVICE_CDEV')])
def test_card_is_refused_where_vfio_cannot_reset_it(kernel, missing, reason):
    (kernel.root / missing).rmdir()
    reasons = build.refusals(_Node(kernel).read())
    assert set(_CARD) <= set(reasons)
    assert all(reason in reasons[name] for name in _CARD)


def test_failure_of_a_function_that_left_device_spec_is_forgotten(kernel):
    node = _Node(kernel)
    kernel.broken = {'0000:88:00.0'}
    node.sweep()
    node.entries = build.entries({'product_id': '2331'})
    resets = len(kernel.resets)
    node.now = 600
    node.sweep()
    assert node.resets.refused() == {}
    assert len(kernel.resets) == resets


def test_unit_is_reset_again_if_its_entry_requires_more(kernel):
    node = _Node(kernel, reset='if_possible')
    for says, count in (('if_possible', 1), ('flr', 2), ('flr', 2)):
        node.entries = build.entries({'vendor_id': '10de', 'reset': says})
        node.sweep()
        assert kernel.resets.count('0000:88:00.0') == count


def test_function_without_reset_is_offered_if_the_entry_permits(kernel):
    kernel.file('0000:88:00.0', 'reset').unlink()
    kernel.file('0000:88:00.0', 'reset_method').unlink()
    assert len(_Node(kernel).offered()) == 6
    node = _Node(kernel, reset='if_possible')
    assert len(node.offered()) == 7
    assert node.give(_unit(node, '0000:88:00.0'))
    assert kernel.resets == []


def test_resettable_functions_of_a_unit_are_reset(kernel):
    kernel.file(_BRIDGE, 'reset_subordinate').unlink()
    (kernel.root / 'sys/class/vfio').rmdir()
    for name, text in (('reset', ''), ('reset_method', 'flr\n')):
        kernel.file('0000:89:00.0', name).write_text(text)
    node = _Node(kernel, reset='if_possible')
    unit = _unit(node, '0000:89:00.0')
    assert node.give(unit)
    assert kernel.resets == ['0000:89:00.0']
    kernel.held, kernel.broken = set(), {'0000:89:00.0'}
    node.sweep()
    assert unit not in node.offered()


@pytest.mark.parametrize('files, methods', [
    ({'config': '', 'reset': '', 'reset_method': 'flr pm bus\n'},
     ('flr', 'pm', 'bus')),
    ({'config': '', 'reset': '', 'reset_method': '\n'}, ()),
    ({'config': '', 'reset': ''}, None),
    ({'config': ''}, ()),
    ({}, None)])
def test_reset_methods_are_read_from_sysfs(files, methods):
    function, _other = reader.read(build.sysfs({
        f'{_ROOT}/0000:81:00.0': files,
        f'{_ROOT}/0000:82:00.0': {'reset': ''}})).functions
    assert function.reset_methods == methods


def test_copy_of_readable_files_has_unknown_reset_methods():
    """``reset`` is write-only, so such a copy lacks it."""
    [function] = reader.read(build.sysfs({
        f'{_ROOT}/0000:81:00.0': {'config': ''}})).functions
    assert function.reset_methods is None


def test_live_machine_without_resets_has_no_methods(tmp_path, monkeypatch):
    build.sysfs({f'{_ROOT}/0000:81:00.0': {'config': ''}}).write(tmp_path)
    monkeypatch.setattr(trees, 'is_live', lambda tree: True)
    [function] = reader.read(trees.open_tree(tmp_path)).functions
    assert function.reset_methods == ()


@given(st.text())
def test_any_text_of_reset_method_is_read(text):
    [function] = reader.read(build.sysfs({
        f'{_ROOT}/0000:81:00.0': {'reset_method': text}})).functions
    assert function.reset_methods == tuple(text.split())


def test_units_of_an_old_recording_count_as_reset(tmp_path):
    """Also of one that was written as files: nothing is reset there."""
    build.recorded('l1').write(tmp_path)
    tree = trees.open_tree(tmp_path)
    host = reader.read(tree, build.entries({'product_id': '37c9'}))
    resets = reset.Resets()
    [first, second] = reset_methods.units(host)
    assert resets.reset(tree, host, first)
    assert resets.reset(build.recorded('l1'), host, second)
    assert resets.refused() == {}


@pytest.mark.parametrize('driver, folders, vfio', [
    ('vfio-pci', [], True), ('mlx5_vfio_pci', [], True), ('qat', [], False),
    ('nvidia', ['vfio-dev/vfio0'], True), (None, [], False)])
def test_vfio_drivers_are_recognised(driver, folders, vfio):
    place = f'{_ROOT}/0000:81:00.0'
    [function] = reader.read(build.sysfs(
        {place: {'driver': driver and f'{_DRIVERS}/{driver}'}},
        folders=[f'sys/devices/{place}/{folder}' for folder in folders]
    )).functions
    assert (function.driver, function.vfio) == (driver, vfio)


def test_used_mdevs_do_not_cause_resets(kernel):
    node = _Node(kernel)
    node.sweep()
    node.resets.used([model.MdevAddress('x')])
    node.sweep()
    assert len(kernel.resets) == len(set(kernel.resets))
