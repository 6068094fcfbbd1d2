# SPDX-License-Identifier: Apache-2.0
"""NCCL's topology file: which devices of a guest are near each other.

NCCL, NVIDIA's library for communication between GPUs, reads from sysfs which
switch and which NUMA node a device is on. In a guest it sees neither: each
device has a root port of its own. The file tells it what the host has.

NCCL believes the file, stops with an error if it cannot read it, and finds out
everything that is not in it. So the file has only what is certain: NUMA cells,
switches and devices. NCCL adds GPUs, NVLinks and network ports itself: it
looks for their PCI addresses in the file, and ignores addresses that it does
not look for.

Source: NVIDIA/nccl, src/graph/xml.cc (the parser; ``ncclTopoGetXmlFromSys``,
which names the upstream ports of switches; ``ncclTopoTrimXml``), xml.h and
topo.h (limits) and topo.cc (``ncclTopoAddPci``), versions 2.8 to 2.30. AMD's
RCCL has the same parser. It reads a part of XML only, so no XML library is
used: what one writes or accepts, NCCL may not.
"""

import collections.abc
import dataclasses
import re
import typing

from nova_accel.core import model
from nova_accel.core import pci_class
from nova_accel.core.guest import device_role

#: The class of a switch's port. NCCL stops if a class is missing, and ignores
#: what is below a GPU or a network controller.
_BRIDGE_CLASS = f'0x{pci_class.PCI_BRIDGE << 8:06x}'

#: The PCI domain of switches. They have addresses that no guest has, so that
#: NCCL reads nothing of them from the guest's sysfs.
_SWITCHES = 0xffff

#: Speeds that NCCL knows, in GT/s. It takes any other for 8 GT/s.
_SPEEDS = (2.5, 5.0, 8.0, 16.0, 32.0, 64.0)

#: Children of an element in NCCL 2.8 to 2.20; later versions allow more.
MAX_CHILDREN = 32

#: Elements: half of the 256 that NCCL 2.21 and later allow, as NCCL adds some
#: for each GPU and network port.
MAX_ELEMENTS = 128

_Number = typing.TypeVar('_Number', int, float)


_Attributes = dict[str, str]


@dataclasses.dataclass
class _Element:
    """An element of the file.

    :param children: by any key
    """

    tag: str
    attributes: _Attributes = dataclasses.field(default_factory=dict)
    children: dict[collections.abc.Hashable, '_Element'] = dataclasses.field(
        default_factory=dict)

    def child(self, key: collections.abc.Hashable, tag: str, /,
              **attributes: str) -> '_Element':
        """Return the child with a key, a new one if there is none."""
        return self.children.setdefault(key, _Element(tag, attributes))

    def lines(self) -> collections.abc.Iterator[str]:
        start = ' '.join([self.tag, *(f'{name}="{value}"' for name, value
                                      in self.attributes.items())])
        if not self.children:
            yield f'<{start}/>'
            return
        yield f'<{start}>'
        for each in self.children.values():
            yield from (f'  {line}' for line in each.lines())
        yield f'</{self.tag}>'


def render(roles: collections.abc.Iterable[device_role.DeviceRole],
           host: model.Host, has_cells: bool) -> str:
    """Return the file for a guest, '' if nothing is certain.

    A device is left out if NCCL does not use its class, if the guest's address
    or NUMA cell of it is unknown, or if it can move to another host while the
    guest runs. A switch is left out if its link is unknown.

    :param host: the machine, with the ports above the devices
    :param has_cells: whether the guest has NUMA cells. If not, all its CPUs
        are on node 0, and the devices must be on one node of the host
    :raises ValueError: if NCCL could not read the file; the text has the
        reason
    """
    listed, nodes = _certain(roles, has_cells)
    if not listed or not has_cells and (len(nodes) > 1 or None in nodes):
        return ''
    functions = {str(function.address): function
                 for function in host.functions}
    system = _Element('system', {'version': '1'})
    numbers: dict[tuple[int, str], int] = {}
    for (cell, address), function in sorted(listed.items(),
                                            key=lambda item: item[0]):
        above = system.child(cell, 'cpu', numaid=str(cell))
        for port, link in _known_switches(function, functions):
            number = numbers.setdefault((cell, port), len(numbers))
            above = above.child(port, 'pci', busid=str(model.PciAddress(
                _SWITCHES, *divmod(number, 32), 0)),
                **{'class': _BRIDGE_CLASS}, **link)
        above.child(address, 'pci', busid=str(address),
                    **{'class': f'0x{function.class_code:06x}'},
                    **_link(function, functions))
    text = '\n'.join([*system.lines(), ''])
    check(text)
    return text


def _certain(roles: collections.abc.Iterable[device_role.DeviceRole],
             has_cells: bool) -> tuple[
                 dict[tuple[int, model.PciAddress], model.Function],
                 set[int | None]]:
    """Return functions by cell and address in the guest, and their nodes."""
    functions: dict[tuple[int, model.PciAddress], model.Function] = {}
    nodes: set[int | None] = set()
    for role in roles:
        if not (role.position and role.function) or role.moves or (
                role.function.class_code >> 16 not in pci_class.NCCL):
            continue
        cell = role.position.cell if has_cells else 0
        if cell is not None:
            functions[cell, role.position.address] = role.function
            nodes.add(role.numa_node)
    return functions, nodes


def _known_switches(function: model.Function,
                    functions: collections.abc.Mapping[str, model.Function],
                    ) -> list[tuple[str, dict[str, str]]]:
    """Return the switches above a device with their links, nearest last.

    Those above a switch whose link is unknown are left out too: devices of
    different switches would seem to be behind one.
    """
    found: list[tuple[str, dict[str, str]]] = []
    for port in reversed(model.switches(function.location.ports)):
        link = _link(functions.get(port), functions)
        if len(link) < 2:
            break
        found.insert(0, (port, link))
    return found


def _link(function: model.Function | None,
          functions: collections.abc.Mapping[str, model.Function],
          ) -> dict[str, str]:
    """Return what NCCL would read of a link on the host.

    That is what both its ends can do: the function and the port above it.
    """
    if not function:
        return {}
    ends = [functions.get(str(function.physfn), function),
            *map(functions.get, function.location.ports[-1:])]
    speed = _least([end.max_link_speed if end else None for end in ends])
    width = _least([end.max_link_width if end else None for end in ends])
    found = {}
    if speed in _SPEEDS:
        found['link_speed'] = _speed(speed)
    if width:
        found['link_width'] = str(width)
    return found


def _least(numbers: collections.abc.Collection[_Number | None],
           ) -> _Number | None:
    """Return the least number, None if one is unknown."""
    known = [number for number in numbers if number]
    return min(known) if len(known) == len(numbers) else None


def _speed(number: float) -> str:
    return f'{number:.1f} GT/s PCIe'


# NCCL's parser takes only spaces and line ends between elements, exactly one
# space before an attribute, and no declaration of XML.
_TAG = re.compile(r'<(/?)([a-z]+)((?: [a-z_]+="[^"]*")*)(/?)>[ \n]*')
_ATTRIBUTE = re.compile(r' ([a-z_]+)="([^"]*)"')

#: For each element, the elements that contain it, and its attributes. The
#: values are shorter than the 253 characters that NCCL reads.
_ELEMENTS = {
    'system': ({''}, {'version': '1'}),
    'cpu': ({'system'}, {'numaid': r'0|[1-9]\d{0,3}'}),
    'pci': ({'cpu', 'pci'}, {
        'busid': r'[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]',
        'class': r'0x[0-9a-f]{6}',
        'link_speed': '|'.join(map(re.escape, map(_speed, _SPEEDS))),
        'link_width': r'[1-9]|[12]\d|3[0-2]'}),
}
#: NCCL finds these out for a device of the guest.
_OPTIONAL = {'link_speed', 'link_width'}


def check(text: str) -> None:
    """Check that NCCL reads a file, and understands all of it.

    :raises ValueError: if it does not; the text has the reason
    """
    top = _parse(text)
    if len(top.children) != 1:
        raise ValueError(f'has {len(top.children)} elements at the top, not 1')
    pairs = list(_below(top))
    for above, element in pairs:
        _check_element(above, element)
    if len(pairs) > MAX_ELEMENTS:
        raise ValueError(f'has {len(pairs)} elements, more than '
                         f'{MAX_ELEMENTS}')
    for name in ('numaid', 'busid'):
        values = [element.attributes[name] for _above, element in pairs
                  if name in element.attributes]
        if len(values) > len({*values}):
            raise ValueError(f'has the same {name} twice')


def _parse(text: str) -> _Element:
    """Return an element whose child is the file's first element."""
    inside, end = [_Element('')], 0
    for match in _TAG.finditer(text):
        if match.start() != end:
            break
        end = match.end()
        closes, tag, attributes, is_empty = match.groups()
        if closes:
            if inside.pop().tag != tag or attributes or is_empty:
                raise ValueError(f'</{tag}> does not end an element')
            continue
        pairs = _ATTRIBUTE.findall(attributes)
        if len(pairs) > len(dict(pairs)):
            raise ValueError(f'{match[0].strip()} has an attribute twice')
        element = inside[-1].child(len(inside[-1].children), tag,
                                   **dict(pairs))
        if not is_empty:
            inside.append(element)
    if end != len(text):
        line = text.count('\n', 0, end) + 1
        raise ValueError(f'line {line} has no element, or one in a form that '
                         'NCCL does not read')
    if len(inside) > 1:
        raise ValueError(f'<{inside[-1].tag}> is not closed')
    return inside[0]


def _below(above: _Element,
           ) -> collections.abc.Iterator[tuple[_Element, _Element]]:
    """Yield each element below one, with the element that contains it."""
    for element in above.children.values():
        yield above, element
        yield from _below(element)


def _check_element(above: _Element, element: _Element) -> None:
    name = next(element.lines())
    parents, patterns = _ELEMENTS.get(element.tag, ({}, {}))
    if above.tag not in parents:
        raise ValueError(f'{name} is in <{above.tag}>')
    for key in patterns.keys() | element.attributes.keys():
        value = element.attributes.get(key)
        if not (key in _OPTIONAL if value is None else
                key in patterns and re.fullmatch(patterns[key], value,
                                                 re.ASCII)):
            raise ValueError(f'{name} has {key} {value!r}')
    if len(element.children) > MAX_CHILDREN:
        raise ValueError(f'{name} has {len(element.children)} children, more '
                         f'than {MAX_CHILDREN}')
    if element.tag == 'pci' and not element.children:
        _check_device(name, element.attributes)
    elif element.tag == 'pci':
        _check_switch(name, element.attributes)
    elif not element.children:
        raise ValueError(f'{name} is empty')


def _check_device(name: str, attributes: _Attributes) -> None:
    if (attributes['busid'].startswith(f'{_SWITCHES:04x}:')
            or int(attributes['class'], 16) >> 16 not in pci_class.NCCL):
        raise ValueError(f'{name} is no device that NCCL uses')


def _check_switch(name: str, attributes: _Attributes) -> None:
    if (not attributes['busid'].startswith(f'{_SWITCHES:04x}:')
            or attributes['class'] != _BRIDGE_CLASS
            or not _OPTIONAL <= attributes.keys()):
        raise ValueError(f'{name} is no switch whose link is known')
