# SPDX-License-Identifier: Apache-2.0
"""PCI addresses, bridges, switches and the Host's values."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_accel.core import model
from tests.unit import build


@pytest.mark.parametrize('text, parts', [
    ('0000:81:00.0', (0, 0x81, 0, 0)),
    ('0000:FF:1F.7', (0, 0xff, 0x1f, 7)),
    ('10000:e1:00.0', (0x10000, 0xe1, 0, 0)),
    ('ffffffff:00:00.0', (0xffffffff, 0, 0, 0)),
])
def test_an_address_is_read_as_sysfs_writes_it(text, parts):
    assert dataclasses.astuple(model.PciAddress.parse(text)) == parts


@pytest.mark.parametrize('text', [
    '', '81:00.0', '0000:81:00', '0000:81:20.0', '0000:81:00.8',
    '0000:81:00.0\n', ' 0000:81:00.0', '0000:81:00.0/x', 'pci0000:00',
    '123456789:81:00.0', '0000:8g:00.0', '٠٠٠٠:81:00.0', '0000-81-00.0',
])
def test_other_text_is_not_an_address(text):
    with pytest.raises(ValueError, match='not a PCI address') as caught:
        model.PciAddress.parse(text)
    assert '\n' not in str(caught.value)


@given(st.builds(model.PciAddress, st.integers(0, 0xffffffff),
                 st.integers(0, 0xff), st.integers(0, 0x1f),
                 st.integers(0, 7)))
def test_address_can_be_formatted_and_parsed(address):
    assert model.PciAddress.parse(str(address)) == address


def test_addresses_sort_as_numbers():
    texts = ['10000:00:00.0', '0000:0a:00.0', '0000:09:00.1', '0000:09:00.0']
    assert sorted(map(build.address, texts)) == [
        build.address(text) for text in reversed(texts)]


@pytest.mark.parametrize('ports, switch', [
    ((), None),
    (('root',), None),
    (('root', 'pci'), None),
    (('root', 'up', 'down'), 'up'),
    (('root', 'up', 'down', 'pci'), 'up'),
    (('root', 'up1', 'down1', 'up2', 'down2'), 'up2'),
])
def test_the_nearest_switch_is_its_upstream_port(ports, switch):
    assert model.nearest_switch(ports) == switch


@pytest.mark.parametrize('own, switch', [
    ((), 'up2'), (('up2',), 'up1'), (('up1',), 'up2'), (('up1', 'up2'), None)])
def test_switch_on_the_card_itself_is_skipped(own, switch):
    ports = ('root', 'up1', 'down1', 'up2', 'down2')
    assert model.nearest_switch(ports, own) == switch


@pytest.mark.parametrize('class_code, bridge, forwarding', [
    (0x030200, False, False),
    (0x120000, False, False),
    (0x060000, True, False),
    (0x060100, True, False),
    (0x060400, True, True),
    (0x060401, True, True),
    (0x060700, True, True),
    (0x060940, True, True),
    (0x068000, False, False),
])
def test_bridges_are_recognised_by_class_code(class_code, bridge, forwarding):
    function = build.function('0000:81:00.0', class_code=class_code)
    assert function.is_bridge is bridge
    assert function.is_forwarding_bridge is forwarding


def test_ids_have_the_format_of_lspci():
    assert build.function('0000:81:00.0', '10de:2330').ids == '10de:2330'


@pytest.mark.parametrize('nodes, only', [
    ((), None), ((0,), 0), ((3,), 3), ((0, 1), None)])
def test_only_node_is_none_unless_the_host_has_one_node(nodes, only):
    assert model.Host(numa_nodes=nodes).only_node == only


def test_a_host_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        model.Host().problems = ('x',)
