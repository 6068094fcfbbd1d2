# SPDX-License-Identifier: Apache-2.0
"""Which card is on which module of the baseboard.

Fabric Manager names GPUs by their module on HGX H100 and later. Only NVIDIA's
driver tells the module of a GPU: nvidia-smi does not see those that are bound
to vfio-pci. So the answer is kept from when the driver of the host had them.

Source: NVIDIA, Fabric Manager User Guide, "Fabric Manager SDK" (the physical
id is the module id that ``nvidia-smi -q`` prints; uuid and PCI address are
empty).
"""

import collections.abc
import dataclasses
import json
import re

from nova_accel.core import model
from nova_accel.core.fabric import manager

#: Seconds, and bytes: nvidia-smi prints some 20,000 for each GPU.
TIMEOUT = 30
MAX_OUTPUT = 4 * 1024 * 1024

#: The driver with which the command sees a card.
_DRIVER = 'nvidia'

_GPU = re.compile(r'<gpu id="([^"]{1,32})">'
                  r'|<gpu_module_id>\s*([0-9]{1,4})\s*</gpu_module_id>')

#: PCI addresses by module.
Modules = collections.abc.Mapping[int, model.PciAddress]


@dataclasses.dataclass(frozen=True)
class Known:
    """What the command told, and of which cards; and the partitions.

    :param modules: the cards by module
    :param cards: all GPUs of the machine at that time, as :func:`cards`
        returns them. With others, the addresses may mean other cards
    :param partitions: what the manager listed last. One that was restarted
        lists nothing before it is told which are active
    """

    modules: Modules = dataclasses.field(default_factory=dict)
    cards: frozenset[str] = frozenset()
    partitions: tuple[manager.Partition, ...] = ()

    def dumps(self) -> str:
        return json.dumps({
            'cards': sorted(self.cards),
            'modules': {str(module): str(address) for module, address
                        in sorted(self.modules.items())},
            'partitions': {str(partition.id): [
                member.module for member in partition.members]
                for partition in self.partitions}})


def loads(text: str) -> Known:
    """Return what :meth:`Known.dumps` wrote; nothing if it is damaged."""
    try:
        read = json.loads(text)
        return Known({int(module): model.PciAddress.parse(address)
                      for module, address in read['modules'].items()},
                     frozenset(map(str, read['cards'])),
                     tuple(manager.Partition(int(number), tuple(
                         map(manager.Member, map(int, modules))))
                         for number, modules in read['partitions'].items()))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Known()


def cards(functions: collections.abc.Iterable[model.Function],
          ) -> frozenset[str]:
    """Return address and ids of each GPU of a machine."""
    return frozenset(f'{function.address} {function.ids}'
                     for function in functions if function.is_nvidia_gpu)


def visible(functions: collections.abc.Iterable[model.Function],
            ) -> frozenset[model.PciAddress]:
    """Return the GPUs that the command can see now."""
    return frozenset(function.address for function in functions
                     if isinstance(function.address, model.PciAddress)
                     and function.is_nvidia_gpu
                     and function.driver == _DRIVER)


def read(output: str) -> dict[int, model.PciAddress]:
    """Return the cards by module, of the output of ``nvidia-smi -q -x``.

    GPUs without a module are left out.

    :raises ValueError: if two GPUs have the same module
    """
    found: dict[int, model.PciAddress] = {}
    card = None
    for address, number in _GPU.findall(output):
        if address:
            card = model.PciAddress.parse(address)
        elif card is not None:
            if int(number) in found:
                raise ValueError(f'{found[int(number)]} and {card} have the '
                                 f'same module, {number}')
            found[int(number)], card = card, None
    return found


def add(known: Known, told: Modules, machine: frozenset[str]) -> Modules:
    """Return the cards by module after the command told some.

    :param machine: the GPUs of the machine now, as of :func:`cards`
    """
    old = known.modules if known.cards == machine else {}
    return {**{module: address for module, address in old.items()
               if address not in told.values()}, **told}


def plain(partitions: collections.abc.Iterable[manager.Partition],
          ) -> tuple[manager.Partition, ...]:
    """Return partitions without what changes: their state, and that of links.
    """
    return tuple(manager.Partition(partition.id, tuple(
        manager.Member(member.module) for member in partition.members))
        for partition in partitions)


def agree(configured: Modules, known: Modules,
          ) -> tuple[dict[int, model.PciAddress], dict[int, str]]:
    """Combine what the operator and the driver say.

    :returns: what neither contradicts; and, for each other module, both
    """
    together = {**known, **configured}
    disputed = {
        module: f'module {module} is {configured[module]} as configured, but '
                f'{known[module]} as the driver of the host said'
        for module in configured.keys() & known.keys()
        if configured[module] != known[module]}
    for module, address in known.items():
        for other in configured:
            if configured[other] == address and other != module:
                text = (f'{address} is module {other} as configured, but '
                        f'module {module} as the driver of the host said')
                disputed.setdefault(other, text)
                disputed.setdefault(module, text)
    return ({module: address for module, address in sorted(together.items())
             if module not in disputed}, disputed)
