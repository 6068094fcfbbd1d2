# SPDX-License-Identifier: Apache-2.0
"""A recorded machine with devices of most kinds."""

import pytest

from nova_accel.host import reader
from tests.unit import build

_ENTRIES = (build.DATA.parent / 'hardware' / 'l1.txt').read_text()


@pytest.fixture(scope='module')
def host():
    entries, broken = reader.parse(
        line for line in _ENTRIES.splitlines() if not line.startswith('#'))
    assert not broken
    return reader.read(build.recorded('l1-kinds'), entries)


def test_each_kind_offers_its_devices(host):
    assert {(region.kind, str(device.address), region.resource_class,
             region.total) for device in host.devices
            for region in device.regions} == {
        ('mdev', '0000:44:00.0', 'VGPU', 4),
        ('mdev', 'mtty', 'CUSTOM_TTY', 12),
        ('fpga', '0000:45:00.0', 'FPGA', 1),
        ('pci', '0000:81:00.0', 'CUSTOM_NVME_VF', 2),
        ('pci', '0000:83:00.0', 'CUSTOM_PCI_8086_10CA', 2),
        ('pci', '0000:84:00.0', 'CUSTOM_GPU_H100', 1),
        ('pci', '0000:85:00.0', 'CUSTOM_QAT', 4),
        ('pci', '0000:86:00.0', 'FPGA', 1)}
    assert (host.refusals, host.problems) == ((), ())


def test_reset_methods_are_read(host):
    functions = {str(f.address): f for f in host.functions}
    assert functions['0000:84:00.0'].reset_methods == ('flr', 'bus')
    assert functions['0000:85:01.0'].reset_methods == ('flr',)
    # A bridge.
    assert functions['0000:80:00.0'].reset_methods == ()
