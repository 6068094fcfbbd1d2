# SPDX-License-Identifier: Apache-2.0
"""Run the contract tests on the kinds of nova_accel."""

import contextlib
import pathlib
import unittest

from nova_accel import testing
from tests import kernel
from tests import nvidia
from tests.unit import build


class _Recorded(testing.KindTests):
    tree = build.DATA / 'hosts' / 'l1.json'


class PciTest(_Recorded, unittest.TestCase):
    kind = 'pci'
    entries = ({'product_id': '2330'},
               {'address': '0000:85:00.0', 'resource_class': 'qat'})


class MdevTest(_Recorded, unittest.TestCase):
    kind = 'mdev'
    entries = ({'vendor_id': '10de', 'mdev_type': 'nvidia-471'},
               {'vendor_id': '10de', 'mdev_type': 'nvidia-468'})

    @contextlib.contextmanager
    def kernel(self, sysfs):
        with kernel.Mdevs():
            yield


class VgpuTest(testing.KindTests, unittest.TestCase):
    kind = 'vgpu'
    tree = build.DATA / 'hosts' / 'l40s-modelled.json'
    entries = ({'vendor_id': '10de', 'vgpu_type': '1154 : NVIDIA L40S-16Q',
                'max_instances': 3},
               {'vendor_id': '10de', 'vgpu_type': 1155,
                'resource_class': 'CUSTOM_VGPU_LARGE'})

    @contextlib.contextmanager
    def kernel(self, sysfs):
        with nvidia.VgpuManager(pathlib.Path(sysfs).parent):
            yield


class FpgaTest(testing.KindTests, unittest.TestCase):
    kind = 'fpga'
    tree = build.DATA / 'hosts' / 'fpga-modelled.json'
    entries = ({'vendor_id': '8086', 'product_id': '09c5',
                'program': ['/bin/false', '{bitstream}']},
               {'kind': 'fpga', 'vendor_id': '8086', 'product_id': '0b31'},
               {'kind': 'fpga', 'vendor_id': '10ee'})
    releases = False


class RecordedFpgaTest(_Recorded, unittest.TestCase):
    kind = 'fpga'
    tree = build.DATA / 'hosts' / 'l1-fpga.json'
    entries = ({'kind': 'fpga', 'vendor_id': '8086'},)
    releases = False


class DeclaredTest(_Recorded, unittest.TestCase):
    kind = 'declared'
    entries = ({'kind': 'declared',
                'regions_file': str(build.DATA / 'kinds' / 'declared.json')},)
