# SPDX-License-Identifier: Apache-2.0
"""Which changes of device_spec need a restart of nova-compute."""

import json

import pytest

from nova_accel.core.device_spec import changed_spec
from nova_accel.host import reader

GPU = {'vendor_id': '10de', 'product_id': '2330'}
NIC = {'vendor_id': '8086', 'product_id': '37c8', 'num_vfs': 4}
FPGA = {'vendor_id': '10ee', 'product_id': '5000', 'program': 'fpga_manager'}


def _refusal(before, after):
    entries, _broken = reader.parse(map(json.dumps, before))
    return changed_spec.refusal(entries, *reader.parse(map(json.dumps, after)))


@pytest.mark.parametrize('before, after', [
    ([], [GPU]), ([GPU], []), ([GPU, NIC], [NIC]), ([FPGA, GPU], [GPU, FPGA]),
    ([GPU], [{**GPU, 'traits': 'CUSTOM_NEW', 'resource_class': 'NEW'}]),
    ([GPU, NIC], [{**GPU, 'reset': 'flr'}, NIC]),
])
def test_change_that_needs_no_restart(before, after):
    assert _refusal(before, after) is None


@pytest.mark.parametrize('before, after, keys', [
    ([], [NIC], 'num_vfs'), ([NIC], [], 'num_vfs'),
    ([NIC], [{**NIC, 'num_vfs': 8}], 'num_vfs'),
    ([NIC], [{**NIC, 'product_id': '37c9'}], 'num_vfs'),
    ([FPGA], [{**FPGA, 'program': ['/x', '{bitstream}']}], 'program'),
    ([FPGA], [{**FPGA, 'program_timeout': 9}], 'program or program_timeout'),
])
def test_change_that_needs_a_restart(before, after, keys):
    refused = _refusal(before, after)
    assert f'entries with {keys} take effect at the start' in str(refused)
    assert refused.remedy == 'restart nova-compute'


def test_changed_value_with_an_error():
    refused = str(_refusal([GPU], [GPU, {**GPU, 'vendor': '10de'}]))
    assert 'the previous value stays in use: [nova_accel] device_spec #2' in (
        refused)
