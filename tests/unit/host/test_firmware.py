# SPDX-License-Identifier: Apache-2.0
"""Firmware versions in sysfs."""

import pytest

from nova_accel.host import reader
from nova_accel.host import recorder
from tests.unit import build

_AT = 'pci0000:80/0000:81:00.0'
_FILES = {
    'NVME': ('nvme/nvme0/firmware_rev', 'GDC5902Q \n', 'GDC5902Q'),
    'INFINIBAND': ('infiniband/mlx5_0/fw_ver', '22.39.1048\n', '22.39.1048'),
    'VBIOS': ('vbios_version', '113-D67301-063\n', '113-D67301-063'),
    'FPGA': ('fpga_region/region0/dfl-fme.0/bitstream_id',
             '0x23000410010309\n', '0x23000410010309'),
}


def _read(facts, *files):
    machine = build.sysfs({_AT: facts}, {
        f'sys/devices/{_AT}/{path}': text for path, text, _shown in files})
    [function] = reader.read(recorder.record(machine)).functions
    return function.firmware


@pytest.mark.parametrize('source', _FILES)
def test_version_is_read_and_recorded(source):
    assert _read({}, _FILES[source]) == ((source, _FILES[source][2]),)


def test_all_versions_are_read():
    assert dict(_read({}, *_FILES.values())) == {
        source: shown for source, (_path, _text, shown) in _FILES.items()}


@pytest.mark.parametrize('facts, text', [
    ({'driver': '../../../bus/pci/drivers/vfio-pci'}, '1\n'), ({}, ' \n')])
def test_version_that_is_not_shown(facts, text):
    assert _read(facts, ('nvme/nvme0/firmware_rev', text, '')) == ()


def test_virtual_function_has_the_version_of_its_card():
    assert _read({'physfn': '../0000:80:00.0'}, _FILES['INFINIBAND']) == ()
