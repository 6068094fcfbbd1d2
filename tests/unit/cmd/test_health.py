# SPDX-License-Identifier: Apache-2.0
"""``nova-accel host show`` tells what nova-compute withholds, and why."""

import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

from nova_accel.cmd import health
from nova_accel.host import background
from nova_accel.host import health as sysfs
from nova_accel.host import tree as trees
from tests.unit import build

ONE, TWO = '0000:81:00.0', '0000:82:00.0'
ENTRY = '[nova_accel]\ndevice_spec = {"vendor_id": "10de"}\n'
_LOST = 'it does not answer: its configuration space reads as all ones'
_NARROW = f'the link of {TWO} has 4 of 16 lanes'


@pytest.fixture
def machine(tmp_path):
    """A copy of sysfs: a GPU that has fallen off the bus, and a narrow link.

    Both are below a root port.
    """
    port = {'vendor': '0x8086\n', 'class': '0x060400\n',
            'max_link_width': '16\n'}
    card = {'reset_method': 'flr\n'}
    build.sysfs({
        'pci0000:80/0000:80:01.0': port,
        f'pci0000:80/0000:80:01.0/{ONE}': {
            **card, 'aer_dev_fatal': 'TOTAL_ERR_FATAL 2\n'},
        'pci0000:80/0000:80:02.0': port,
        f'pci0000:80/0000:80:02.0/{TWO}': {
            **card, 'max_link_width': '16\n', 'current_link_width': '4\n'},
        'pci0000:80/0000:83:00.0': card,
    }, folders=['sys/bus/pci/drivers/vfio-pci']).write(tmp_path)
    place = (tmp_path / 'sys/bus/pci/devices' / ONE).resolve()
    (place / 'config').write_bytes(b'\xff' * 64)
    return tmp_path


def _show(run, machine, *arguments, conf=ENTRY):
    return run('host', 'show', '--sysfs-root', str(machine), *arguments,
               conf=conf)


def _data(run, machine, **more):
    _code, out, _err = _show(run, machine, '-f', 'json', **more)
    return json.loads(out)


@pytest.mark.parametrize('form', ['text', 'json', 'yaml', 'table', 'value',
                                  'shell'])
def test_each_format_has_what_is_withheld_and_where_it_was_read(
        run, machine, form):
    code, out, err = _show(run, machine, '-f', form)
    assert code == 0
    text = out.translate({ord(char): None for char in '|\\'})
    assert _LOST in ' '.join(text.split())
    assert 'read from this copy of sysfs' in text
    assert f'Withheld: {ONE} (10de:2330): {_LOST}; look for it in' in err


def test_withheld_functions_are_neither_offered_nor_refused(run, machine):
    data = _data(run, machine)
    assert {function['address']: function['state']
            for function in data['functions']} == {
        '0000:80:01.0': 'unnamed', '0000:80:02.0': 'unnamed',
        ONE: 'withheld', TWO: 'withheld', '0000:83:00.0': 'offered'}
    assert {item['address']: item['reason'] for item in data['withheld']} == {
        ONE: _LOST, TWO: _NARROW}
    assert data['refused'] == []
    assert [region['total'] for device in data['devices']
            for region in device['regions']] == [0, 0, 1]
    _code, out, _err = _show(run, machine)
    assert 'Devices offered: 1, units: 1, functions refused: 0\n' in out
    assert 'Functions withheld for their health: 2 (read from ' in out
    assert f': CUSTOM_PCI_10DE_2330; WITHHELD, {_NARROW}\n' in out


@pytest.mark.parametrize('option, notes, withheld', [
    ('', [f'{ONE} (10de:2330): it had 2 fatal PCI Express errors since the '
          'kernel found it; more than 0 within an hour withhold it, which '
          'only nova-compute knows'], [ONE, TWO]),
    ('health_max_fatal_errors = -1', [], [ONE, TWO]),
    ('health_max_fatal_errors = 2\nhealth_check_link_width = false', [],
     [ONE]),
])
def test_limits_are_those_of_nova_conf(run, machine, option, notes, withheld):
    data = _data(run, machine, conf=ENTRY + option)
    assert data['problems'] == notes
    assert [item['address'] for item in data['withheld']] == withheld


def test_strict_command_fails_if_a_device_is_withheld(run, machine):
    assert _show(run, machine, '--strict')[0] == 1
    assert _show(run, machine, '--strict', conf=(
        '[nova_accel]\ndevice_spec = {"address": "0000:83:00.0"}\n'))[0] == 0


def test_suggested_devices_that_would_be_withheld_are_named(run, machine):
    _code, out, err = _show(run, machine, conf='')
    assert f'! Withheld: {ONE} (10de:2330): {_LOST}; ' in out
    assert '# CUSTOM_PCI_10DE_2330: 3\n' in out
    assert err == ''


def test_card_that_blocks_delays_and_hides_no_other(
        run, machine, monkeypatch):
    read = sysfs.read

    def blocking(tree, function, vfs):
        if str(function.address) == ONE:
            time.sleep(60)
        return read(tree, function, vfs)

    monkeypatch.setattr(sysfs, 'read', blocking)
    monkeypatch.setattr(background, 'WAIT', 1)
    monkeypatch.setattr(trees, 'is_live', lambda _tree: True)
    began = time.monotonic()
    data = _data(run, machine)
    assert time.monotonic() - began < 30
    assert data['health'] == 'read now by this command'
    assert [(item['address'], item['reason'].partition(':')[0])
            for item in data['withheld']] == [
        (ONE, 'its health is unknown'), (TWO, f'the link of {TWO[:4]}')]


def test_result_comes_from_another_process():
    assert health.apart(os.getpid, 60) not in (None, os.getpid())


@pytest.mark.parametrize('end', [
    lambda: os._exit(1), lambda: 1 / 0, lambda: time.sleep(20)])
def test_process_without_a_result_gives_none(end):
    began = time.monotonic()
    assert health.apart(end, .2) is None
    assert time.monotonic() - began < 10


def test_command_ends_while_the_other_process_is_blocked():
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, '-c', 'import time; from nova_accel.cmd import health'
         '; print(health.apart(lambda: time.sleep(20), .1))'],
        capture_output=True, text=True, timeout=60,
        cwd=pathlib.Path(__file__).parents[3])
    assert (done.stdout, done.stderr) == ('None\n', '')
    assert time.monotonic() - began < 15


def test_verify_reads_health_in_the_same_way(run, machine):
    code, out, _err = run('host', 'verify', '--sysfs-root', str(machine),
                          '-f', 'json', conf=ENTRY)
    assert code == 1
    assert [region['problems'] for region in json.loads(out)['regions']] == [
        [_LOST], [_NARROW], []]
