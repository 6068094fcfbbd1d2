# SPDX-License-Identifier: Apache-2.0
"""The entries that ``host show`` suggests if device_spec is not set."""

import json
import pathlib

import pytest

from nova_accel.core import kind
from nova_accel.core.device_spec import suggestion
from tests.unit import build

HOSTS = pathlib.Path(__file__).parents[2] / 'data' / 'hosts'

GPU = {'vendor_id': '10de', 'product_id': '2330'}
VGA = {'class': '0x030000\n'}
_ONE, _TWO = 'pci0000:80/0000:81:00.0', 'pci0000:80/0000:82:00.0'


def _at(address):
    return {**GPU, 'address': address}


@pytest.fixture
def suggest(run, tmp_path):
    """Return the suggested entries of a recording, and the reasons by address.

    Check that the entries, pasted into nova.conf, offer all their units.
    """
    def call(machine):
        if not isinstance(machine, pathlib.Path):
            path = tmp_path / 'machine.json'
            path.write_text(machine.dumps())
            machine = path
        arguments = 'host', 'show', '--sysfs-root', str(machine)
        code, out, _err = run(*arguments, '-f', 'json')
        assert code == 0
        shown = json.loads(out)
        entries = [one['entry'] for one in shown['suggestions']]
        _code, out, _err = run(*arguments)
        pasted = out.partition('would offer devices:\n')[2]
        assert [json.loads(line.removeprefix('device_spec = '))
                for line in pasted.splitlines()
                if not line.startswith('# ')] == entries
        conf = f'[nova_accel]\n{pasted}'
        code, out, err = run(*arguments, '--strict', '-f', 'json', conf=conf)
        assert (code, err) == (0, '')
        offered = json.loads(out)
        assert offered['problems'] == shown['problems']
        assert sum(region['total'] for device in offered['devices']
                   for region in device['regions']) == sum(
            sum(one['units'].values()) for one in shown['suggestions'])
        for one in shown['suggestions']:
            for other in one['others']:
                assert run(*arguments, '--strict', '--device-spec',
                           json.dumps(other))[::2] == (0, '')
        return entries, {refusal['address']: refusal['reason']
                         for refusal in shown['not_suggested']}
    return call


@pytest.mark.parametrize('name, entries', [
    ('l1-8gpu', [GPU]),
    ('l40s-modelled', [{'vendor_id': '10de', 'product_id': '26b9',
                        'vgpu_type': '1145 : NVIDIA L40S-1B'}]),
    ('l1-kinds', [
        {'vendor_id': '10de', 'product_id': '20b0', 'mdev_type': 'nvidia-468'},
        GPU, {'vendor_id': '10ee', 'product_id': '5000'},
        {'vendor_id': '8086', 'product_id': '09c4', 'kind': 'fpga'},
        {'vendor_id': '8086', 'product_id': '37c9'},
        {'parent': 'mtty', 'mdev_type': 'mtty-1'}]),
    ('fpga-modelled', [
        {'vendor_id': '10ee', 'product_id': '5000', 'kind': 'fpga'},
        {'vendor_id': '8086', 'product_id': '09c5', 'kind': 'fpga'},
        {'vendor_id': '8086', 'product_id': '0b31', 'kind': 'fpga'}]),
])
def test_suggested_entries_offer_devices(suggest, name, entries):
    assert suggest(HOSTS / f'{name}.json') == (entries, {})


def test_suggestion_lists_other_types(run):
    _code, out, _err = run('host', 'show', '--sysfs-root',
                           str(HOSTS / 'l1-kinds.json'))
    assert ('# VGPU: 4\n# Other types: nvidia-469, nvidia-470, nvidia-471, '
            'nvidia-472, nvidia-473\n'
            '# Set max_instances if a card cannot have so many at the same '
            'time.\ndevice_spec = {') in out


@pytest.mark.parametrize('console', [
    {**VGA, 'boot_vga': '1\n'},
    # In a recording without boot_vga.
    VGA,
    {'class': '0x038000\n', 'boot_display': '1\n'}])
def test_console_is_never_suggested(suggest, console):
    three = 'pci0000:80/0000:83:00.0'
    assert suggest(build.sysfs({
        _ONE: {**VGA, 'boot_vga': '0\n'}, _TWO: console, three: {}})) == (
        [_at('0000:81:00.0'), _at('0000:83:00.0')],
        {'0000:82:00.0': 'the console of the host is on it, or may be'})
    assert suggest(build.sysfs({_TWO: {
        **console, 'vendor': '0x1a03\n', 'device': '0x2000\n'}})) == (
        [], {'0000:82:00.0': 'the console of the host is on it, or may be'})


def test_console_named_by_an_entry_is_reported(run, tmp_path):
    path = tmp_path / 'machine.json'
    path.write_text(build.sysfs({_ONE: {**VGA, 'boot_vga': '1\n'}}).dumps())
    _code, out, _err = run('host', 'show', '--sysfs-root', str(path),
                           '--device-spec', json.dumps(GPU))
    assert ('\n! 0000:81:00.0 (10de:2330): offered as --device-spec #1 says, '
            'though the console of the host is on it, or may be\n') in out


_DENIED = {'vendor': '0x8086\n', 'device': '0x37c8\n', 'class': '0x0b4000\n'}


@pytest.mark.parametrize('changes, files, entry, why', [
    ({'reset': None}, {}, _at('0000:81:00.0'), 'it cannot be reset by itself'),
    ({'iommu_group': None}, {}, _at('0000:81:00.0'),
     'it is in no IOMMU group'),
    ({'sriov_totalvfs': '4\n', 'sriov_numvfs': '4\n'}, {},
     _at('0000:81:00.0'), 'it has 4 virtual functions enabled'),
    (_DENIED, {'sys/module/vfio_pci/parameters/disable_denylist': 'N\n'}, GPU,
     'vfio-pci has it on its denylist'),
])
def test_refused_devices_are_not_suggested(suggest, changes, files, entry,
                                           why):
    plain = {'config': '', 'reset': ''}
    entries, refused = suggest(build.sysfs(
        {_ONE: plain, _TWO: {**plain, **changes}}, files))
    assert entries == [entry]
    [(address, reason)] = refused.items()
    assert address == '0000:82:00.0'
    assert reason.startswith(why)


def test_devices_of_novas_device_spec_are_not_suggested(run, tmp_path):
    path = tmp_path / 'machine.json'
    path.write_text(build.sysfs({_ONE: {}, _TWO: {}}).dumps())
    _code, out, _err = run(
        'host', 'show', '--sysfs-root', str(path),
        conf='[pci]\ndevice_spec = {"address": "0000:82:00.0"}\n')
    assert '! Not suggested: 0000:82:00.0 (10de:2330): [pci] device_' in out
    assert [json.loads(line.partition(' = ')[2]) for line in out.splitlines()
            if line.startswith('device_spec')] == [_at('0000:81:00.0')]


def test_gpu_is_suggested_with_its_audio_function(suggest):
    functions = {f'{place[:-1]}{number}': {
        'iommu_group': f'../../../kernel/iommu_groups/{group}', **changes}
        for group, place in enumerate((_ONE, _TWO))
        for number, changes in enumerate(({}, {
            'device': '0x22ba\n', 'class': '0x040300\n'}))}
    assert suggest(build.sysfs(functions)) == (
        [{'vendor_id': '10de', 'address': f'0000:8{bus}:00.*'}
         for bus in (1, 2)], {})


def test_disks_are_not_suggested(suggest):
    assert suggest(build.sysfs({_ONE: {'class': '0x010802\n'}})) == ([], {})


class _Types:
    """A kind with many types for each function."""

    def suggest(self, function):
        return ({'type': number} for number in range(30))


def test_number_of_tries_grows_linearly_with_types_and_cards():
    functions = [build.function(f'0000:{bus:02x}:00.0') for bus in range(16)]
    asked = []

    def decide(items):
        asked.append(items)
        return build.host(functions, *(
            {key: value for key, value in item.items() if key != 'type'}
            for item in items), foreign=build.entries(
                {'address': '0000:0f:00.0'}))

    assert isinstance(_Types(), kind.Suggester)
    found = suggestion.suggest(functions, [_Types()], decide)
    assert [len(one.others) for one in found.entries] == [29] * 15
    assert len(asked) < 30 + 2 * 16
