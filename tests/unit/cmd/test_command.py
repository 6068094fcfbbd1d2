# SPDX-License-Identifier: Apache-2.0
"""The command nova-accel, called by people and programs."""

import contextlib
from importlib import metadata
import io
import json
import os
import pathlib
import subprocess
import sys

import pytest

from nova_accel.cmd import drawing
from nova_accel.cmd import main
from nova_accel.core import model
from nova_accel.core.fabric import module_map
from nova_accel.core.guest import bar_window
from nova_accel.host import reader
from nova_accel.host import tree as trees
from tests import fmpm
from tests.unit import build

HOSTS = pathlib.Path(__file__).parents[2] / 'data' / 'hosts'
EIGHT_GPUS = str(HOSTS / 'l1-8gpu.json')
L1 = str(HOSTS / 'l1.json')
GPUS = '{"vendor_id": "10de", "product_id": "2330"}'

PROFILE = """
name: pair
description: Two GPUs on one NUMA node
groups:
- resources: {CUSTOM_GPU: 1}
  count: 2
  numa: required
"""


def show(run, *arguments, **more):
    code, out, _err = run('host', 'show', '-f', 'json', *arguments, **more)
    return code, json.loads(out)


def test_host_show_draws_the_topology(run):
    code, out, err = run('host', 'show', '--sysfs-root', EIGHT_GPUS,
                         '--device-spec', GPUS)
    assert (code, err) == (0, '')
    lines = out.splitlines()
    assert 'NUMA nodes: 2' in lines[0]
    assert lines[1].startswith('Devices offered: 8, units: 8')
    switch = next(index for index, line in enumerate(lines)
                  if 'switch 0000:81:00.0' in line)
    assert ['0000:83:00.0', '0000:84:00.0', '0000:85:00.0'] == [
        line.split('─ ')[1].split()[0]
        for line in lines[switch + 1:switch + 4]]
    assert 'CUSTOM_PCI_10DE_2330' in lines[switch + 1]
    assert 'Ethernet: no entry' in lines[switch + 3]


def test_host_show_applies_allow_unsafe_host(run, tmp_path):
    recording = json.loads(pathlib.Path(EIGHT_GPUS).read_text())
    recording['files']['proc/cmdline'] = 'pcie_acs_override=downstream\n'
    path = tmp_path / 'host.json'
    path.write_text(json.dumps(recording))
    arguments = '--sysfs-root', str(path), '--device-spec', GPUS
    _code, data = show(run, *arguments)
    assert (len(data['devices']), len(data['refused'])) == (0, 8)
    _code, data = show(run, *arguments,
                       conf='[nova_accel]\nallow_unsafe_host = true\n')
    assert (len(data['devices']), len(data['refused'])) == (8, 0)


def test_effect_of_strict_isolation_is_shown(run):
    arguments = '--sysfs-root', EIGHT_GPUS, '--device-spec', GPUS
    conf = '[nova_accel]\nisolation = strict\n'
    for more, by_file in ((('--isolation', 'strict'), ''), ((), conf)):
        code, out, err = run('host', 'show', *arguments, *more, conf=by_file)
        assert code == 0
        assert 'Functions withheld by isolation = strict: 8\n' in out
        assert out.count('sysfs does not show how it is reset') == 8
        assert 'boot Linux 5.15 or later' in err
    _code, out, err = run('host', 'show', *arguments, '--isolation',
                          'standard', conf=conf)
    assert 'strict' not in out + err


def test_host_show_lists_all_states_of_a_function(run):
    code, out, _err = run(
        'host', 'show', '--sysfs-root', str(HOSTS / 'l40s-modelled.json'),
        '--device-spec', '[{"vendor_id": "10de", "vgpu_type": 1154}, '
        '{"vendor_id": "10de", "vgpu_type": 1155, "resource_class": "BIG"}, '
        '{"vendor_id": "10de", "vgpu_type": 77}]')
    assert code == 0
    [line] = [line for line in out.splitlines() if ' 0000:41:00.4 ' in line]
    assert ('VF of 0000:41:00.0: CUSTOM_BIG; VGPU; REFUSED, it cannot have '
            'the vGPU type 77: it lists 1145: NVIDIA L40S-1B') in line


LINKS = """
partitions:
- devices: ["0000:43:00.0", "0000:44:00.0"]
- devices: ["0000:43:00.0", "0000:44:00.0", "0000:48:00.0", "0000:49:00.0"]
islands:
- devices: ["0000:83:00.0", "0000:84:00.0"]
"""


def test_host_show_draws_link_domains(run, tmp_path):
    path = tmp_path / 'links.yaml'
    path.write_text(LINKS)
    code, out, _err = run('host', 'show', '--sysfs-root', EIGHT_GPUS,
                          '--device-spec', GPUS, '--link-domains', str(path))
    assert code == 0
    assert out.splitlines()[-4:] == [
        '└─ link domains',
        '   ├─ partition 0000:43:00.0 0000:44:00.0 0000:48:00.0 0000:49:00.0',
        '   ├─ partition 0000:43:00.0 0000:44:00.0',
        '   └─ island 0000:83:00.0 0000:84:00.0']
    _code, data = show(run, conf=f"""
[nova_accel]
sysfs_root = {EIGHT_GPUS}
link_domains = {path}
""")
    assert data['links'] == {
        'partitions': [
            ['0000:43:00.0', '0000:44:00.0'],
            ['0000:43:00.0', '0000:44:00.0', '0000:48:00.0', '0000:49:00.0']],
        'islands': [['0000:83:00.0', '0000:84:00.0']]}


def test_host_show_without_link_domains(run):
    _code, out, _err = run('host', 'show', '--sysfs-root', EIGHT_GPUS,
                           '--device-spec', GPUS)
    assert 'link domains' not in out


def test_host_show_reports_problems_of_link_domains(run, tmp_path):
    path = tmp_path / 'links.yaml'
    path.write_text('islands: 3')
    code, out, _err = run('host', 'show', '--sysfs-root', EIGHT_GPUS,
                          '--device-spec', GPUS, '--link-domains', str(path))
    assert code == 1
    assert 'Devices offered: 8' in out
    assert out.splitlines()[-1] == (
        f"! [nova_accel] link_domains, {path}, islands: '3' is not a list")
    path.write_text(LINKS.replace('84', '99'))
    code, out, _err = run('host', 'show', '--sysfs-root', EIGHT_GPUS,
                          '--device-spec', GPUS, '--link-domains', str(path))
    assert code == 0
    assert ('! [nova_accel] link_domains: 0000:99:00.0 does not exist on this '
            'host' in out.splitlines()[-1])


def test_host_show_json(run):
    code, data = show(run, '--sysfs-root', EIGHT_GPUS, '--device-spec', GPUS)
    assert code == 0
    assert data['iommu_groups'] is True
    assert data['numa_nodes'] == [0, 1]
    assert [device['location']['numa_node'] for device in data['devices']
            ] == [0] * 4 + [1] * 4
    assert data['devices'][0]['regions'][0]['units'] == [['0000:43:00.0']]
    states = {function['address']: function['state']
              for function in data['functions']}
    assert (states['0000:43:00.0'], states['0000:45:00.0']) == (
        'offered', 'unnamed')


def test_host_show_says_what_resets_units(run, tmp_path):
    file = tmp_path / 'host.json'
    port = 'pci0000:80/0000:80:01.0'
    file.write_text(build.sysfs({
        port: {'class': '0x060400\n'},
        **{f'{port}/0000:81:00.{number}': {
            'iommu_group': '../x/7', 'config': '', 'reset_method': methods}
            for number, methods in enumerate(['flr bus\n', 'pm\n'])},
        'pci0000:80/0000:82:00.0': {'config': '', 'reset_method': 'flr\n'},
    }, folders=['sys/bus/pci/drivers/vfio-pci', 'sys/class/vfio']).dumps())
    arguments = '--sysfs-root', str(file), '--device-spec', GPUS
    _code, out, _err = run('host', 'show', *arguments)
    assert out.splitlines()[-2:] == [
        f'CUSTOM_PCI_10DE_2330: 1 unit, reset by {how}'
        for how in ('flr', 'vfio hot reset')]
    _code, data = show(run, *arguments)
    assert [region['resets'] for device in data['devices']
            for region in device['regions']] == [['vfio hot reset'], ['flr']]
    _code, out, _err = run('host', 'verify', '--sysfs-root', str(file),
                           conf=f'[nova_accel]\ndevice_spec = {GPUS}\n')
    assert 'reset by vfio hot reset: reset not tried' in out


def test_host_show_says_what_cleans_units(run):
    arguments = ('--sysfs-root', EIGHT_GPUS, '--device-spec',
                 GPUS[:-1] + ', "clean": "wipe"}')
    conf = ('[nova_accel]\ncleaner = {"name": "wipe", "clean": ["/x"], '
            '"verify": ["/y"]}\n')
    _code, out, _err = run('host', 'show', *arguments, conf=conf)
    assert 'CUSTOM_PCI_10DE_2330: 8 units, cleaned by wipe' in out
    code, out, _err = run('host', 'show', *arguments,
                          conf=conf.replace('/x', 'x'))
    assert code == 1
    assert '! [nova_accel] cleaner #1: clean does not begin' in out
    assert "the cleaner 'wipe', which this host does not have" in out


def test_host_show_has_both_nodes_of_a_device_on_one_without_cpus(
        run, tmp_path):
    file = tmp_path / 'host.json'
    file.write_text(build.sysfs(
        {'pci0000:80/0000:81:00.0': {'numa_node': '2\n'}},
        build.CPULESS_NODES).dumps())
    arguments = '--sysfs-root', str(file), '--device-spec', GPUS
    _code, out, _err = run('host', 'show', *arguments)
    assert 'NUMA nodes: 2 and 2 without CPUs, ' in out
    assert out.splitlines()[3:] == [
        '└─ NUMA node 1', '   └─ pci0000:80',
        '      └─ 0000:81:00.0  10de:2330  3D controller, on NUMA node 2 '
        'without CPUs: CUSTOM_PCI_10DE_2330']
    _code, data = show(run, *arguments)
    assert (data['numa_nodes'], data['cpuless_nodes']) == (
        [0, 1], {'2': 1, '10': 0})
    for shown in (data['devices'], data['functions']):
        assert [(one['location']['numa_node'],
                 one['location']['cpuless_node']) for one in shown] == [(1, 2)]


@pytest.fixture
def large_bars(tmp_path):
    """A recording of two H100 GPUs."""
    file = tmp_path / 'large.json'
    file.write_text(build.sysfs({
        f'pci0000:80/0000:8{number}:00.0': {'resource': build.H100_RESOURCE}
        for number in (1, 2)}).dumps())
    return str(file)


def test_host_show_prints_address_bits_of_large_bars(run, large_bars):
    code, out, _err = run('host', 'show', '--sysfs-root', large_bars,
                          '--device-spec', GPUS)
    assert code == 0
    assert ('0000:81:00.0  10de:2330  3D controller, BAR 2: 128 GiB: '
            'CUSTOM_PCI_10DE_2330\n') in out
    assert out.endswith(
        '\nCUSTOM_PCI_10DE_2330: physical address bits that a UEFI guest '
        'needs for the BARs: 41 with 1; 42 with 2\n')


def _needs(units, **fields):
    """Return the lines about a Region of units with BARs of 4 GiB."""
    region = build.region('CUSTOM_X', units, **fields)
    functions = [model.Function(
        address, '10de', '2330', build.GPU,
        bars=(model.Bar(0, 4 * bar_window.GIB),))
        for address in dict.fromkeys(unit[0] for unit in region.units)]
    host = model.Host(tuple(functions), (build.device(region),))
    return [line for line in drawing.draw(host, 'x', [])
            if line.startswith('CUSTOM_X: ')]


def test_units_beyond_the_firmware_limit_are_reported():
    assert _needs(8) == []
    assert _needs(300) == [
        'CUSTOM_X: physical address bits that a UEFI guest needs for the '
        'BARs: 43 with 256; more than firmware can use with 257']


def test_mdevs_have_no_bars_of_their_parent():
    assert _needs(300, mdevs=True) == []


def test_host_show_json_has_bars(run, large_bars):
    _code, data = show(run, '--sysfs-root', large_bars)
    assert data['functions'][0]['bars'] == [
        {'number': number, 'bytes': size, '64bit': True, 'prefetchable': True}
        for number, size in ((0, 16 << 20), (2, 128 << 30), (4, 32 << 20))]
    _code, data = show(run, '--sysfs-root', EIGHT_GPUS)
    assert data['functions'][0]['bars'] is None


def test_host_show_prints_reason_of_refusal(run):
    code, out, _err = run('host', 'show', '--sysfs-root', L1,
                          '--device-spec', '{"vendor_id": "1af4"}')
    assert code == 0
    assert '0000:00:02.0  1af4:1001  SCSI: REFUSED, the host uses it' in out


@pytest.mark.parametrize('spec, complaint', [
    ('{"vendor_id": "10de", "product_id": "2331"}',
     '--device-spec #1: names no device of this host; '),
    ('{"vendor_id": "10de"}', 'Refused: 0000:43:00.0 (10de:2330) and 7 more: '
     'the IOMMU groups of this host cannot be trusted, '),
])
def test_host_show_warns_of_an_entry_that_offers_nothing(
        run, tmp_path, spec, complaint):
    recording = json.loads(pathlib.Path(EIGHT_GPUS).read_text())
    recording['files']['proc/cmdline'] = 'pcie_acs_override=downstream\n'
    path = tmp_path / 'host.json'
    path.write_text(json.dumps(recording))
    arguments = ('host', 'show', '--sysfs-root', str(path),
                 '--device-spec', spec)
    code, out, err = run(*arguments)
    assert (code, out.count('\n! ')) == (0, 0)
    [warning] = err.splitlines()
    assert warning.startswith(f'nova-accel: {complaint}')
    assert run(*arguments, '--strict') == (1, out, err)
    code, out, also = run(*arguments, '-f', 'json')
    assert (code, also) == (0, err)
    assert json.loads(out)['warnings'] == [
        warning.removeprefix('nova-accel: ')]


def test_host_show_strict_passes_valid_entries(run):
    assert run('host', 'show', '--sysfs-root', EIGHT_GPUS, '--strict',
               '--device-spec', GPUS)[::2] == (0, '')
    # An entry that names cards also names their virtual functions.
    assert run('host', 'show', '--sysfs-root', L1, '--strict', '--device-spec',
               '{"vendor_id": "8086", "product_id": "37c8", "num_vfs": 2}',
               )[::2] == (0, '')


def test_host_show_reads_nova_conf(run):
    code, data = show(run, conf=f"""
[nova_accel]
sysfs_root = {L1}
device_spec = {{"vendor_id": "8086", "product_id": "37c9"}}
device_spec = {{"address": "0000:84:00.0", "resource_class": "gpu"}}
[pci]
device_spec = {{"vendor_id": "10de", "address": "0000:84:*"}}
""")
    assert code == 0
    assert [device['address'] for device in data['devices']
            ] == ['0000:85:00.0']
    [refusal] = data['refused']
    assert refusal['address'] == '0000:84:00.0'
    assert '[pci] device_spec #1 claims it' in refusal['reason']


def test_host_show_refuses_parents_of_novas_mdevs(run):
    _code, data = show(run, conf=f"""
[nova_accel]
sysfs_root = {L1}
device_spec = {{"vendor_id": "10de", "product_id": "20b0"}}
[devices]
enabled_mdev_types = nvidia-470
[mdev_nvidia-470]
device_addresses = 0000:44:00.5
""")
    assert [refusal['address'] for refusal in data['refused']
            ] == ['0000:44:00.5']
    [device] = data['devices']
    assert device['regions'][0]['total'] == 3


def test_host_show_suggests_entries_that_can_be_pasted(run):
    _code, out, _err = run('host', 'show', '--sysfs-root', EIGHT_GPUS)
    _drawn, suggested = out.split('would offer devices:\n')
    assert '# CUSTOM_PCI_10DE_2330: 8\n' in suggested
    for above in '', 'profile_dirs = /tmp\n':
        code, out, _err = run('host', 'show', '--sysfs-root', EIGHT_GPUS,
                              conf=f'[nova_accel]\n{above}{suggested}')
        assert code == 0
        assert 'Devices offered: 8, units: 8' in out


def test_host_reads_the_configuration_of_nova_compute(
        capsys, tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    (tmp_path / '.nova').mkdir()
    for name, product in ('nova', '9999'), ('nova-compute', '2330'):
        (tmp_path / '.nova' / f'{name}.conf').write_text(
            '[nova_accel]\ndevice_spec = '
            f'{{"vendor_id": "10de", "product_id": "{product}"}}\n')
    assert main.main(['host', 'show', '--sysfs-root', EIGHT_GPUS]) == 0
    assert 'Devices offered: 8' in capsys.readouterr().out


@pytest.mark.parametrize('option', ['--config-file', '--config-dir'])
def test_missing_configuration_is_an_error(capsys, option):
    assert main.main([option, '/nowhere', 'profile', 'list']) == 1
    captured = capsys.readouterr()
    assert not captured.out
    assert '/nowhere' in captured.err


def test_undecodable_configuration_is_an_error(capsys, tmp_path):
    path = tmp_path / 'nova.conf'
    path.write_bytes(b'[nova_accel]\n# caf\xe9\n')
    assert main.main(['--config-file', str(path), 'profile', 'list']) == 1
    assert capsys.readouterr().err.startswith('nova-accel: nova.conf: cannot')


def test_redirected_output_shows_devices():
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        assert main.main(['host', 'show', '--sysfs-root', EIGHT_GPUS,
                          '--device-spec', GPUS]) == 0
    assert 'Devices offered: 8' in shown.getvalue()


def test_terminal_without_line_characters_shows_devices():
    shown = subprocess.run(
        [sys.executable, '-m', 'nova_accel.cmd.main', 'host', 'show',
         '--sysfs-root', EIGHT_GPUS, '--device-spec', GPUS],
        env={**os.environ, 'PYTHONIOENCODING': 'iso-8859-1'},
        check=True, capture_output=True).stdout.decode('iso-8859-1')
    assert '?? 0000:83:00.0  10de:2330' in shown


def test_host_show_reports_an_invalid_entry(run):
    code, out, _err = run('host', 'show', '--sysfs-root', EIGHT_GPUS,
                          '--device-spec', '{"vendor": "10de"}')
    assert code == 1
    assert "--device-spec #1: does not know the key 'vendor'" in out


def test_host_show_of_missing_sysfs_prints_one_line(run):
    code, out, err = run('host', 'show', '--sysfs-root', '/nowhere')
    assert (code, out) == (1, '')
    assert err.startswith("nova-accel: sysfs_root '/nowhere': cannot be read")
    assert err.count('\n') == 1


@pytest.mark.parametrize('name', ['host.json', 'host.json.gz'])
def test_recording_can_be_shown(run, tmp_path, name):
    path = str(tmp_path / name)
    code, out, _err = run('host', 'record', '--sysfs-root', L1, path)
    assert code == 0
    assert out.startswith(f'{path}: ')
    assert show(run, '--sysfs-root', path, '--device-spec', GPUS) == show(
        run, '--sysfs-root', L1, '--device-spec', GPUS)


def test_host_record_to_standard_output(run):
    code, out, _err = run('host', 'record', '--sysfs-root', L1, '-')
    assert code == 0
    assert out == pathlib.Path(L1).read_text()


@pytest.fixture
def profiles(tmp_path):
    directory = tmp_path / 'profiles'
    directory.mkdir()
    (directory / 'pair.yaml').write_text(PROFILE)
    return directory


def test_profile_list(run, profiles):
    code, out, err = run('profile', 'list', '--profile-dir', str(profiles))
    assert (code, err) == (0, '')
    assert '| pair |      2 | 2 × 1 CUSTOM_GPU |' in out


def test_profile_show_one(run, profiles):
    code, out, _err = run('profile', 'show', 'pair',
                          '--profile-dir', str(profiles))
    assert code == 0
    assert [line.strip('| ') for line in out.splitlines()
            if 'nova_accel:' in line] == [
        'nova_accel:count_ACCEL0=2', 'nova_accel:numa_ACCEL0=required',
        'nova_accel:profile=pair']
    assert ' ACCEL1: 1 CUSTOM_GPU, numa required ' in out


def test_profile_show_json(run, profiles):
    code, out, _err = run('profile', 'show', 'pair', '-f', 'json', conf=(
        f'[nova_accel]\nprofile_dirs = {profiles}\n'))
    profile = json.loads(out)
    assert code == 0
    assert profile['name'] == 'pair'
    assert profile['extra_specs']['nova_accel:numa_ACCEL0'] == 'required'


def test_profile_digest(run, profiles, tmp_path):
    def digest(*arguments, folder=profiles):
        code, out, err = run('profile', 'digest', '--profile-dir',
                             str(folder), *arguments)
        assert (code, err) == (0, '')
        return out
    first = digest()
    assert len(first) == 33 and int(first, 16)
    other = tmp_path / 'other'
    other.mkdir()
    (other / 'b.json').write_text(json.dumps([{
        'groups': [{'numa': 'required', 'count': 2,
                    'resources': {'CUSTOM_GPU': 1}}],
        'name': 'pair', 'description': 'Two GPUs on one NUMA node'}]))
    assert digest('pair') == digest(folder=other)
    (other / 'c.yaml').write_text(PROFILE.replace('pair', 'twins'))
    assert digest('pair') != digest(folder=other)
    (other / 'b.json').unlink()
    digests = {digest('pair')}
    any_of = '  any_of: [[CUSTOM_A, CUSTOM_B], []]'
    for line in ('gpu_cliques: true', 'guest_switches: true',
                 'same_domain: required', any_of, f'{any_of}\nper: host'):
        (other / 'c.yaml').write_text(f'{PROFILE}{line}\n')
        digests.add(digest(folder=other))
    assert len(digests) == 6
    _code, out, _err = run('profile', 'show', 'pair', '--profile-dir',
                           str(other))
    assert ' ACCEL1: 1 CUSTOM_GPU, CUSTOM_A+CUSTOM_B else any, numa ' in out


def test_profile_show_of_unknown_name_fails(run, profiles):
    code, out, err = run('profile', 'show', 'nobody',
                         '--profile-dir', str(profiles))
    assert (code, out) == (1, '')
    assert err == (f"nova-accel: profile 'nobody': is not known; looked for "
                   f'in {profiles}\n')


def test_profile_check(run, profiles):
    assert run('profile', 'check', '--profile-dir', str(profiles)) == (
        0, '', 'nova-accel: 1 profile, 0 problems\n')
    (profiles / 'bad.yaml').write_text('name: bad\ngroups: []\n')
    code, out, _err = run('profile', 'check', '--profile-dir', str(profiles))
    assert code == 1
    assert f"! profile 'bad' in {profiles}/bad.yaml" in out


def test_profile_check_accepts_unquoted_off(run, profiles):
    path = profiles / 'pair.yaml'
    path.write_text(PROFILE.replace('numa: required', 'numa: off'))
    assert run('profile', 'check', str(path)) == (
        0, '', 'nova-accel: 1 profile, 0 problems\n')
    _code, out, _err = run('profile', 'show', 'pair', '--profile-dir',
                           str(profiles))
    assert 'nova_accel:count_ACCEL0=2' in out
    assert 'nova_accel:numa' not in out


def test_profile_check_of_missing_directory_fails(run, tmp_path):
    code, out, err = run('profile', 'check', '--profile-dir',
                         str(tmp_path / 'nothing'))
    assert (code, err) == (1, 'nova-accel: 0 profiles, 1 problem\n')
    assert 'nothing: is not a directory' in out


@pytest.mark.parametrize('option', [[], ['--profile-dir', '{}/empty']])
def test_profile_check_warns_of_directories_without_profiles(
        run, tmp_path, option):
    (tmp_path / 'empty').mkdir()
    (tmp_path / 'empty' / 'README').write_text('none yet')
    # A directory of nova.conf need not exist yet.
    conf = (f'[nova_accel]\nprofile_dirs = {tmp_path}/nothing, '
            f'{tmp_path}/empty\n')
    arguments = 'profile', 'check', *(part.format(tmp_path)
                                      for part in option)
    code, out, err = run(*arguments, conf=conf)
    assert (code, err) == (0, 'nova-accel: 0 profiles, 0 problems\n')
    assert ('nothing: is not a directory (warning)\n' in out) == (not option)
    assert 'empty: has no profile file' in out
    assert run(*arguments, '--strict', conf=conf) == (1, out, err)
    _code, data, _err = run(*arguments, '-f', 'json', conf=conf)
    assert [f'! {one["Thing"]}: {one["Reason"]} ({one["Severity"]})'
            for one in json.loads(data)] == out.splitlines()
    assert run('profile', 'list', conf=conf)[2]


def test_profile_check_continues_after_a_missing_file(run, tmp_path):
    good = tmp_path / 'good.yaml'
    good.write_text(PROFILE)
    code, out, err = run('profile', 'check', '-f', 'json',
                         str(tmp_path / 'none.yaml'), str(good))
    assert (code, err) == (1, 'nova-accel: 1 profile, 1 problem\n')
    [problem] = json.loads(out)
    assert problem['Thing'].endswith('none.yaml')
    assert 'No such file' in problem['Reason']


def test_profile_too_large_for_flavors_is_shown(run, tmp_path):
    (tmp_path / 'all.yaml').write_text(f'{PROFILE}---\n' + json.dumps(
        {'name': 'large', 'groups': [
            {'resources': {f'CUSTOM_{"X" * 150}{number}': 1}}
            for number in range(90)]}))
    for name, is_too_large in ('large', True), ('pair', False):
        code, out, _err = run('profile', 'show', name, '-f', 'json',
                              '--profile-dir', str(tmp_path))
        assert code == 0
        assert (json.loads(out)['extra_specs'] is None) == is_too_large


def test_profile_with_lone_surrogate_is_refused(run, tmp_path):
    (tmp_path / 'half.json').write_text(
        '{"name": "p", "description": "caf\\ud83d", "groups": '
        '[{"resources": {"PGPU": 1}}]}')
    code, out, _err = run('profile', 'check', '--profile-dir', str(tmp_path))
    assert code == 1
    assert 'contains a lone surrogate' in out


def test_profile_check_json_of_files(run, profiles):
    path = profiles / 'fpga.json'
    path.write_text('[{"resources:FPGA": 1, "accel:function_id": "x"}]')
    code, out, err = run('profile', 'check', '-f', 'json', str(path))
    assert (code, err) == (1, 'nova-accel: 0 profiles, 1 problem\n')
    [problem] = json.loads(out)
    assert "function 'x' is not a uuid" in problem['Reason']


def test_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit) as exit:
        main.main(['--version'])
    assert not exit.value.code
    assert capsys.readouterr().out.endswith(
        f' {metadata.version("nova-accel")}\n')


@pytest.mark.parametrize('arguments', [[], ['help'], ['--help']])
def test_help_lists_the_commands(capsys, arguments):
    with contextlib.suppress(SystemExit):
        main.main(arguments)
    out = capsys.readouterr().out
    for command in ('host check', 'host record', 'host show', 'metrics',
                    'profile check', 'profile digest', 'profile list',
                    'profile show'):
        assert f'\n  {command} ' in out


def test_completion_knows_the_commands(run):
    code, out, _err = run('complete')
    assert code == 0
    assert "cmds_profile='check digest list show'" in out


def test_unknown_command_exits_with_2(run):
    code, out, _err = run('profile', 'paint')
    assert code == 2
    assert 'Did you mean' in out


def test_list_has_the_formats_of_openstack(run, profiles):
    _code, out, _err = run('profile', 'list', '--profile-dir', str(profiles),
                           '-f', 'csv', '-c', 'name', '-c', 'groups')
    assert out == '"Name","Groups"\n"pair",2\n'


def test_logs_of_modules_are_shown_on_request_only(profiles):
    (profiles / 'bad.yaml').write_text('name: bad\ngroups: []\n')
    first, second = [subprocess.run(
        [sys.executable, '-m', 'nova_accel.cmd.main', 'profile', 'list',
         '--profile-dir', str(profiles), *options], check=True, text=True,
        capture_output=True).stderr.splitlines() for options in ([], ['-v'])]
    [line] = first
    assert second.count(line) == 2


def test_options_that_do_not_exist_are_named(run, profiles):
    code, _out, err = run(
        'profile', 'check', conf='[nova_accel]\n'
        f'profile_dirs = {profiles}\ndevice_profiles_dir = /x\n')
    assert code == 0
    assert 'device_profiles_dir in' in err
    assert 'the nearest option is profile_dirs' in err


@pytest.fixture
def manager(tmp_path):
    """Return a stand-in for the Fabric Manager of four of the GPUs."""
    folder = tmp_path / 'fm'
    folder.mkdir()
    return fmpm.FabricManager(
        folder, partitions={0: (1, 2, 3, 4), 1: (1, 2), 7: (1,), 8: (5,)},
        addresses={1: '0000:43:00.0', 2: '0000:44:00.0',
                   3: '0000:48:00.0', 4: '0000:49:00.0'},
        active=[1], links={2: 17})


def test_host_show_draws_partitions_beside_the_file(run, tmp_path, manager):
    path = tmp_path / 'links.yaml'
    path.write_text(LINKS.replace(
        'islands', '- devices: ["0000:43:00.0", "0000:48:00.0"]\nislands'))
    arguments = ('--sysfs-root', EIGHT_GPUS, '--device-spec', GPUS,
                 '--link-domains', str(path), '--fabric-manager',
                 manager.option(modules={
                     module: address for module, address
                     in manager.get('addresses').items()}))
    code, out, _err = run('host', 'show', *arguments)
    assert code == 0
    lines = out.splitlines()
    at = lines.index('└─ fabric manager')
    assert lines[at:at + 5] == [
        '└─ fabric manager',
        '   ├─ partition 0: 0000:43:00.0 0000:44:00.0 0000:48:00.0 '
        '0000:49:00.0, modules 1 2 (17 of 18 links) 3 4, also in the file',
        '   ├─ partition 1: 0000:43:00.0 0000:44:00.0, modules 1 2 (17 of 18 '
        'links), active, also in the file',
        '   ├─ partition 7: 0000:43:00.0, modules 1',
        '   └─ partition 8: not offered, modules 5']
    said = [line for line in lines if line.startswith('! ')]
    assert len(said) == 4
    assert 'no card is known for module 5; ' in said[0]
    assert all(
        f'partition {number} is not offered: links of 0000:44:00.0 have '
        'failed; ' in line
        for number, line in enumerate(said[1:3]))
    assert ('link_domains: the partition 0000:43:00.0 0000:48:00.0 is not '
            'used: the fabric manager has partition ' in said[3])
    _code, data = show(run, *arguments)
    assert data['links']['partitions'] == [['0000:43:00.0']]
    assert data['fabric_partitions'][1] == {
        'id': 1, 'active': True, 'modules': [1, 2],
        'cards': ['0000:43:00.0', '0000:44:00.0'], 'in_file': True,
        'failed_links': [2]}
    assert data['fabric_partitions'][3]['cards'] is None
    # It only looks.
    assert manager.log() == [['-l'], ['--get-nvlink-failed-devices']] * 2
    manager.set(gone=[3])
    assert {one['address']: 'no partition with it' in one['reason']
            for one in show(run, *arguments)[1]['withheld']} == {
                '0000:48:00.0': True, '0000:49:00.0': True}


def _copied(tmp_path, name):
    machine = tmp_path / 'machine'
    trees.open_tree(name).write(machine)
    return machine / 'sys'


def test_host_show_asks_the_manager_of_nova_conf(run, tmp_path, manager):
    option = manager.option(modules_command=['/bin/false'])
    conf = (f'[DEFAULT]\nstate_path = {tmp_path}\nhost = host1\n'
            f'[nova_accel]\nfabric_manager = {option}\n')
    kept = tmp_path / 'nova_accel/modules/host1.json'
    kept.parent.mkdir(parents=True)
    sysfs = _copied(tmp_path, EIGHT_GPUS)
    cards = module_map.cards(reader.read(
        trees.open_tree(EIGHT_GPUS)).functions)
    kept.write_text(module_map.Known(
        {1: model.PciAddress.parse('0000:43:00.0')}, cards).dumps())
    before = kept.read_text()
    code, data = show(run, '--sysfs-root', str(sysfs), conf=conf)
    assert [one['cards'] for one in data['fabric_partitions']] == [
        None, None, ['0000:43:00.0'], None]
    # A recording has no manager.
    _code, recorded = show(run, '--sysfs-root', EIGHT_GPUS, conf=conf)
    assert recorded['fabric_partitions'] == []
    assert manager.log() == [['-l'], ['--get-nvlink-failed-devices']]
    assert kept.read_text() == before
    assert code == 0


def test_host_show_does_not_run_what_others_can_change(run, tmp_path,
                                                       manager):
    sysfs = _copied(tmp_path, EIGHT_GPUS)
    conf = f'[nova_accel]\nfabric_manager = {manager.option()}\n'
    arguments = ('--sysfs-root', str(sysfs))
    pathlib.Path(manager.fmpm).chmod(0o777)
    _code, data = show(run, *arguments, conf=conf)
    assert f"users other than root can write '{manager.fmpm}'" in (
        data['problems'][0])
    pathlib.Path(manager.fmpm).chmod(0o755)
    (tmp_path / 'nova.conf').chmod(0o777)
    code, data = show(run, *arguments, conf=conf)
    assert code == 1
    assert data['problems'][0].startswith(
        '[nova_accel] fabric_manager: is not used by this command: ')
    assert manager.log() == []


def test_host_show_reports_an_invalid_fabric_manager(run):
    code, data = show(run, '--sysfs-root', EIGHT_GPUS, '--fabric-manager',
                      '{"command": ["fmpm"]}')
    assert code == 1
    assert data['problems'][0].startswith(
        '[nova_accel] fabric_manager: command does not begin')
