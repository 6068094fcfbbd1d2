# SPDX-License-Identifier: Apache-2.0
"""NCCL's topology file has the host's part of a guest's tree, or nothing."""

import dataclasses
import itertools
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_accel.core import model
from nova_accel.core.guest import device_role
from nova_accel.core.guest import guest_buses
from nova_accel.core.guest import nccl_topology
from tests.unit import build
from tests.unit import nccl

GOOD = (nccl.GOLDEN / 'l1-8gpu-links.xml').read_text()
SWITCH = ('<pci busid="ffff:00:00.0" class="0x060400" '
          'link_speed="32.0 GT/s PCIe" link_width="16">')
DEVICE = '<pci busid="0000:{}:00.0" class="0x030200"/>'
LINK = {'max_link_speed': 32.0, 'max_link_width': 16}


@pytest.mark.parametrize('name, text', [
    pytest.param(name, text, id=name) for name, text in nccl.files()])
def test_file_of_a_recorded_machine(name, text):
    golden = nccl.GOLDEN / f'{name}.xml'
    assert text == (golden.read_text() if golden.exists() else '')


def _role(at, function, cell=0, **facts):
    return device_role.DeviceRole(
        at, '', '', '', guest_buses.Position(build.address(at), '', cell),
        function.location, function.location.numa_node, function, **facts)


@st.composite
def guests(draw):
    """Return the roles of random devices, and their host."""
    functions = {}

    def add(key, class_code, ports, node):
        if key not in functions:
            at = f'0000:{len(functions):02x}:00.0'
            functions[key] = build.function(
                at, class_code=class_code, location=model.Location(
                    node, '', ports),
                max_link_speed=draw(st.sampled_from([None, 16.0, 32.0, 128.])),
                max_link_width=draw(st.sampled_from([None, 8, 16])))
        return functions[key]

    roles = []
    for number in range(draw(st.integers(0, 12))):
        node = draw(st.none() | st.integers(0, 2))
        path, ports = [node], ()
        for step in draw(st.none() | st.lists(st.integers(0, 2), max_size=5)
                         ) or ():
            path.append(step)
            ports += (str(add(tuple(path), build.PCI_BRIDGE, ports,
                              node).address),)
        function = add(number, draw(st.sampled_from(
            [build.GPU, build.NIC, 0x120000, 0x010802])), ports, node)
        role = _role(f'0000:{0xff - number:02x}:00.0', function, draw(
            st.sampled_from([node, node, None])), moves=draw(
                st.sampled_from([False, False, True])))
        roles.append(role if draw(st.integers(0, 5)) else dataclasses.replace(
            role, position=None))
    return roles, model.Host(tuple(functions.values()))


def _paths(text):
    """Return the addresses from the cell to each device, by the device's."""
    found = {}

    def walk(element, above):
        for child in element:
            path = [*above, child.get('busid') or child.get('numaid')]
            if len(child):
                walk(child, path)
            else:
                found[path[-1]] = path[:-1]
    if text:
        walk(ElementTree.fromstring(text), [])
    return found


def _switches(role, host):
    """Return the known switches above a device, up to an unknown one."""
    functions = {str(function.address): function
                 for function in host.functions}
    ports = role.location.ports
    found = []
    for place in range(1, len(ports) - 1, 2):
        above, upstream = map(functions.get, ports[place - 1:place + 1])
        speeds = {above.max_link_speed, upstream.max_link_speed}
        if (above.max_link_width and upstream.max_link_width
                and speeds - {128.0} and None not in speeds):
            found.append(ports[place])
        else:
            found.clear()
    return found


def _shared(one, other):
    """Return how many of the first parts of two paths are the same."""
    return len(list(itertools.takewhile(
        lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


@given(guests())
def test_file_has_the_tree_of_the_host(guest):
    roles, host = guest
    paths = _paths(nccl_topology.render(roles, host, True))
    listed = [role for role in roles if role.position and not role.moves
              and role.position.cell is not None
              and role.function.class_code != 0x010802]
    assert paths.keys() == {role.alias for role in listed}
    on_host = {role.alias: [str(role.position.cell), *_switches(role, host)]
               for role in listed}
    for one, other in itertools.product(paths, repeat=2):
        assert _shared(paths[one], paths[other]) == _shared(
            on_host[one], on_host[other])


@given(guests())
def test_guest_without_cells(guest):
    roles, host = guest
    roles = [dataclasses.replace(
        role, position=role.position and dataclasses.replace(
            role.position, cell=None)) for role in roles]
    paths = _paths(nccl_topology.render(roles, host, False))
    nodes = {role.numa_node for role in roles if role.position
             and not role.moves and role.function.class_code != 0x010802}
    assert {path[0] for path in paths.values()} == (
        {'0'} if len(nodes) == 1 and None not in nodes else set())


@pytest.mark.parametrize('card, port, link', [
    ({'max_link_speed': 16.0}, {'max_link_width': 8},
     {'link_speed': '16.0 GT/s PCIe', 'link_width': '8'}),
    ({'max_link_speed': None}, {}, {'link_width': '16'}),
    ({}, {'max_link_width': None}, {'link_speed': '32.0 GT/s PCIe'}),
    # A speed that no version of NCCL knows.
    ({'max_link_speed': 128.0}, {'max_link_speed': 128.0},
     {'link_width': '16'})])
def test_link_of_a_virtual_function_is_what_both_ends_can_do(card, port, link):
    place = model.Location(0, '', ('0000:80:01.0',))
    functions = (
        build.function('0000:80:01.0', class_code=build.PCI_BRIDGE,
                       **{**LINK, **port}),
        build.function('0000:81:00.0', location=place, **{**LINK, **card}),
        build.function('0000:81:00.1', physfn='0000:81:00.0', location=place))
    text = nccl_topology.render([_role('0000:01:00.0', functions[-1])],
                                model.Host(functions), True)
    [device] = ElementTree.fromstring(text).iter('pci')
    assert {name: value for name, value in device.items()
            if name.startswith('link')} == link


def test_too_many_devices_of_a_cell():
    roles = [_role(f'0000:{number:02x}:00.0', build.function('0000:81:00.0'))
             for number in range(nccl_topology.MAX_CHILDREN + 1)]
    assert nccl_topology.render(roles[1:], model.Host(), True)
    with pytest.raises(ValueError, match='33 children, more than 32'):
        nccl_topology.render(roles, model.Host(), True)


def _devices(first, number):
    return ''.join(DEVICE.format(f'{first + each:02x}')
                   for each in range(number))


@pytest.mark.parametrize('old, new, reason', [
    # What NCCL's parser cannot read.
    ('  <cpu numaid="0">', '\t<cpu numaid="0">', 'line 2 has no element'),
    ('<system', '<?xml version="1.0"?>\n<system', 'line 1 has no element'),
    ('<system', '<!-- a comment -->\n<system', 'line 1 has no element'),
    (' class', '  class', 'line 3 has no element'),
    (' class', '\n class', 'line 3 has no element'),
    ('"/>', '" />', 'line 4 has no element'),
    ('numaid="0"', "numaid='0'", 'line 2 has no element'),
    ('</system>\n', '', '<system> is not closed'),
    ('</system>\n', '</sys', 'has no element'),
    ('</cpu>', '</pci>', '</pci> does not end an element'),
    ('</system>', '</system></system>', 'does not end an element'),
    (' class=', ' class="0x060400" class=', 'an attribute twice'),
    # What it does not take.
    (GOOD, '', 'has 0 elements at the top'),
    ('</system>', '</system>' + GOOD.strip(), '2 elements at the top'),
    ('system version="1"', 'system version="2"', "has version '2'"),
    ('system version="1"', 'system', 'has version None'),
    (SWITCH, f'<gpu/>{SWITCH}', '<gpu/> is in <cpu>'),
    ('<cpu numaid="0">', f'{DEVICE.format("99")}<cpu numaid="0">',
     'is in <system>'),
    (SWITCH, f'<cpu numaid="7"/>{SWITCH}', 'is in <cpu>'),
    (' link_width', ' vendor="0x1000" link_width', "has vendor '0x1000'"),
    ('numaid="1"', 'numaid="-1"', "has numaid '-1'"),
    ('numaid="1"', 'numaid="0"', 'the same numaid twice'),
    ('0000:f6', '0000:f5', 'the same busid twice'),
    ('0000:f6', '0000:F6', "has busid '0000:F6:00.0'"),
    (' class="0x030200"', '', 'has class None'),
    ('0x030200', '0x0302', "has class '0x0302'"),
    ('32.0 GT/s', '33.0 GT/s', "has link_speed '33.0 GT/s PCIe'"),
    ('link_width="16"', 'link_width="33"', "has link_width '33'"),
    (' class="0x030200"', ' class="0x030200" foo=""', "has foo ''"),
    (' class="0x030200"', ' class="0x030200" key="1"', "has key '1'"),
    # What it would not understand.
    ('class="0x030200"', 'class="0x010802"', 'no device that NCCL uses'),
    ('busid="0000:f6', 'busid="ffff:f6', 'no device that NCCL uses'),
    (SWITCH, f'{SWITCH[:-1]}/>{SWITCH.replace(":00.0", ":1f.0")}',
     'no device that NCCL uses'),
    (SWITCH, SWITCH.replace('ffff:00:00.0', '0000:99:00.0'),
     'no switch whose link is known'),
    (SWITCH, SWITCH.replace('0x060400', '0x030200'),
     'no switch whose link is known'),
    (SWITCH, SWITCH.replace(' link_width="16"', ''),
     'no switch whose link is known'),
    (SWITCH, SWITCH.replace(' link_speed="32.0 GT/s PCIe"', ''),
     'no switch whose link is known'),
    ('</system>', '<cpu numaid="7"/></system>', 'is empty'),
    (SWITCH, _devices(0, 31) + SWITCH, '33 children, more than 32'),
    ('</system>', ''.join(
        f'<cpu numaid="{2 + cell}">{_devices(32 * cell, 28)}</cpu>'
        for cell in range(4)) + '</system>', '133 elements, more than 128'),
])
def test_file_that_nccl_does_not_read_or_understand(old, new, reason):
    nccl_topology.check(GOOD)
    broken = GOOD.replace(old, new, 1)
    assert broken != GOOD
    with pytest.raises(ValueError, match=reason):
        nccl_topology.check(broken)


def test_line_ends_and_spaces_between_elements_do_not_matter():
    nccl_topology.check(GOOD.replace('\n', ' \n\n'))
    nccl_topology.check(''.join(line.strip() for line in GOOD.splitlines()))
