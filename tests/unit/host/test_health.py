# SPDX-License-Identifier: Apache-2.0
"""The health of a function, as read from sysfs."""

import pytest

from nova_accel.core import health
from nova_accel.core import model
from nova_accel.host import health as sysfs
from nova_accel.host import pci
from nova_accel.host import tree
from tests.unit import build

ROOT = 'pci0000:40/0000:40:01.0'
SWITCH = f'{ROOT}/0000:41:00.0/0000:42:00.0'
CARD = f'{SWITCH}/0000:43:00.0'
BRIDGE = {'class': '0x060400\n'}
X16 = {'current_link_width': '16\n', 'max_link_width': '16\n'}


def _links(machine, address):
    functions, _problems = pci.read(machine)
    [function] = [found for found in functions
                  if str(found.address) == address]
    return list(sysfs.links(machine, function))


def test_links_up_to_the_root():
    machine = build.sysfs({
        ROOT: {**BRIDGE, 'max_link_width': '8\n', 'current_link_width': '1\n'},
        f'{ROOT}/0000:41:00.0': {
            **BRIDGE, **X16, 'current_link_width': '8\n',
            'current_link_speed': '2.5 GT/s PCIe\n',
            'max_link_speed': '16.0 GT/s PCIe\n'},
        SWITCH: {**BRIDGE, **X16, 'max_link_speed': '16 GT/s\n'},
        CARD: {**X16, 'current_link_width': '4\n',
               'current_link_speed': '16.0 GT/s PCIe\n',
               'max_link_speed': '32.0 GT/s PCIe\n'}})
    assert _links(machine, '0000:43:00.0') == [
        health.Link('0000:41:00.0', 8, 8, 2.5, 16.),
        health.Link('0000:43:00.0', 4, 16, 16., 16.)]


@pytest.mark.parametrize('facts', [
    {}, {'current_link_width': '0\n', 'max_link_width': '16\n'},
    {'current_link_width': '63\n', 'max_link_width': '16\n'},
    {'current_link_width': '4\n', 'max_link_width': '255\n'},
    {'current_link_width': 'Unknown\n', 'max_link_width': '16\n'}])
def test_link_of_unknown_width(facts):
    machine = build.sysfs({ROOT: BRIDGE, f'{ROOT}/0000:41:00.0': facts})
    assert _links(machine, '0000:41:00.0') == []


def test_function_without_a_port_above_has_no_link():
    machine = build.sysfs({'pci0000:40/0000:40:02.0': X16})
    assert _links(machine, '0000:40:02.0') == []


def test_errors():
    machine = build.sysfs({ROOT: {
        'aer_dev_fatal': 'DLP 3\nTOTAL_ERR_FATAL 4\n',
        'aer_dev_nonfatal': f'TOTAL_ERR_NONFATAL {"9" * 5000}\n',
        'aer_dev_correctable': 'RxErr 2\nTOTAL_ERR_COR 12\n'}})
    assert sysfs.errors(machine, model.PciAddress.parse('0000:40:01.0')) == {
        health.Severity.FATAL: 4, health.Severity.CORRECTABLE: 12}


@pytest.mark.parametrize('config, answers', [
    (b'\xff' * 64, False), (b'\x86\x80' + b'\0' * 62, True), (b'', True)])
def test_answer_of_the_configuration_space(tmp_path, config, answers):
    build.sysfs({ROOT: {'config': ''}}).write(tmp_path)
    machine = tree.Directory(tmp_path / 'sys')
    [function], _problems = pci.read(machine)
    path = tmp_path / pci.path(machine, function.address) / 'config'
    path.write_bytes(config)
    assert sysfs.read(machine, function, 0).answers is answers
