# SPDX-License-Identifier: Apache-2.0
"""Read what the kernel shows of FPGAs behind PCI functions.

Sources: Documentation/fpga/dfl.rst, Documentation/ABI/testing/
sysfs-class-fpga-region (``compat_id``), sysfs-platform-dfl-port (``afu_id``),
sysfs-class-fpga-manager (``state``, ``status``). sysfs shows a port below its
PCI function, while the host's own driver is bound to that function.
"""

import collections
import collections.abc
import dataclasses

from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core.request import fpga
from nova_accel.host import pci
from nova_accel.host import tree as trees

REGIONS = 'sys/class/fpga_region'
MANAGERS = 'sys/class/fpga_manager'

#: States of a manager without fault, and those while it programs.
_WELL = frozenset({'unknown', 'power up', 'reset', 'operating'})
_PROGRAMMING = frozenset({'firmware request', 'parse header', 'write init',
                          'write', 'write complete'})

# The afu_id of an empty port, and of a device that does not answer.
_NONE, _GONE = '0' * 32, 'f' * 32


@dataclasses.dataclass(frozen=True)
class Shown:
    """What sysfs shows below one PCI function.

    :param regions: names of the regions that can be programmed
    :param ids: ``compat_id`` of the regions that have one
    :param ports: names of the ports to programmed functions
    :param functions: ``afu_id`` of the ports
    :param managers: names of the FPGA managers, ``fpga0``
    :param port_faults: faults of ports, a line each
    :param faults: faults of regions and managers, a line each
    """

    regions: tuple[str, ...] = ()
    ids: frozenset[str] = frozenset()
    ports: tuple[str, ...] = ()
    functions: frozenset[str] = frozenset()
    managers: tuple[str, ...] = ()
    port_faults: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()


#: What sysfs shows of a machine, by PCI function.
All = collections.abc.Mapping[model.Address, Shown]

#: Texts by field of :class:`Shown`.
_Facts = collections.defaultdict[str, list[str]]


def read(tree: trees.Tree) -> All:
    """Return what sysfs shows of FPGAs."""
    found: dict[model.Address, _Facts] = collections.defaultdict(
        lambda: collections.defaultdict(list))
    for folder, reader in ((REGIONS, _read_region), (MANAGERS, _read_manager)):
        for name in tree.names(folder):
            path = trees.follow(tree, f'{folder}/{name}')
            functions = pci.addresses(path.split('/'))
            if functions:
                reader(tree, path, name, found[functions[-1]])
    return {address: _shown(facts) for address, facts in found.items()}


def _shown(facts: _Facts) -> Shown:
    def texts(name: str) -> tuple[str, ...]:
        return tuple(map(errors.path, facts[name]))

    return Shown(texts('regions'), frozenset(texts('ids')), texts('ports'),
                 frozenset(texts('functions')), texts('managers'),
                 texts('port_faults'), texts('faults'))


def manager(tree: trees.Tree, cards: collections.abc.Iterable[Shown]) -> str:
    """Return the name of the FPGA manager that can program a card.

    Some vendors' kernels have the attribute ``firmware``, to program by; the
    mainline kernel does not.

    :param cards: what its physical functions show
    :raises ValueError: if there is none, or several
    """
    managers = [name for card in cards for name in card.managers]
    if len(managers) != 1:
        raise ValueError(f'has {len(managers) or "no"} FPGA managers')
    if 'firmware' not in tree.names(
            trees.follow(tree, f'{MANAGERS}/{managers[0]}')):
        raise ValueError(f'its FPGA manager {managers[0]} has no attribute '
                         '"firmware" in this kernel')
    return managers[0]


def state(tree: trees.Tree, manager: str) -> str:
    """Return the state of a manager: ``operating`` if it is programmed."""
    path = trees.follow(tree, f'{MANAGERS}/{manager}')
    return (tree.text(f'{path}/state') or '').strip()


def _read_region(tree: trees.Tree, path: str, name: str,
                 facts: _Facts) -> None:
    ports = [child for child in tree.names(path)
             if child.startswith('dfl-port.')]
    # A directory with ports or a management engine is the DFL device itself,
    # which is not programmable; its regions are.
    if not ports and not any(child.startswith('dfl-fme.')
                             for child in tree.names(path)):
        facts['regions'].append(name)
    text = tree.text(f'{path}/compat_id')
    if text and text.strip():
        try:
            facts['ids'].append(fpga.read_id(text.strip()))
        except ValueError as error:
            facts['faults'].append(f'the compat_id of {name}, {error}')
    for port in ports:
        facts['ports'].append(port)
        try:
            facts['functions'].extend(_read_port(tree, f'{path}/{port}'))
        except ValueError as error:
            facts['port_faults'].append(f'the afu_id of {port}, {error}')


def _read_port(tree: trees.Tree, path: str) -> list[str]:
    text = (tree.text(f'{path}/afu_id') or '').strip()
    if not text:
        raise ValueError('cannot be read: the port is held in reset, or '
                         'nothing is behind it')
    function = fpga.read_id(text)
    if function == _GONE:
        raise ValueError('is all ones: the device does not answer')
    return [] if function == _NONE else [function]


def _read_manager(tree: trees.Tree, path: str, name: str,
                  facts: _Facts) -> None:
    facts['managers'].append(name)
    now = (tree.text(f'{path}/state') or '').strip()
    if now in _WELL or not now:
        return
    status = ', '.join((tree.text(f'{path}/status') or '').split('\n')
                       ).strip(', ')
    facts['faults'].append(
        f'{name} is being programmed' if now in _PROGRAMMING else
        f'{name} is in state {errors.quote(now)}'
        + (f' ({errors.quote(status)})' if status else ''))
