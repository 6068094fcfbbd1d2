# SPDX-License-Identifier: Apache-2.0
"""Texts about functions that servers can only get together."""

import collections.abc
import json

from nova_accel.core import model
from nova_accel.core import pci_class

Functions = collections.abc.Sequence[model.Function]

_NAME_ALL = 'name all of them in one entry: {}'
_OTHER_SLOT = ('put the card into a slot that has an IOMMU group of its own, '
               'or switch ACS on in the firmware; nothing helps if the device '
               'is a part of the board')


def describe(functions: Functions) -> str:
    """Return functions with what an operator has to know of each."""
    return ', '.join(map(_describe, functions))


def _describe(function) -> str:
    if function.unreadable:
        return f'{function.address} (it cannot be read)'
    facts = [function.ids, pci_class.name(function.class_code)]
    if function.driver:
        facts.append(f'driver {function.driver}')
    if function.use:
        facts.append(f'the host uses it: {function.use}')
    return f'{function.address} ({", ".join(facts)})'


def remedy(functions: Functions, steps: collections.abc.Iterable[str] = (),
           ) -> str:
    """Return what helps if an entry does not name all functions of a unit.

    :param steps: what else is necessary before servers can get the unit
    """
    if not _are_one_slot(functions):
        return _OTHER_SLOT
    if any(function.console for function in functions):
        steps = ['give the host another console', *steps]
    return ', and '.join([_NAME_ALL.format(json.dumps(slot_item(functions))),
                          *dict.fromkeys(steps)])


def remedy_if_refused(functions: Functions, because_of: model.PciAddress,
                      reason: str) -> str:
    """Return what helps if no entry can offer a unit as it is.

    :param because_of: the function for which it is refused
    """
    if not _are_one_slot(functions):
        return _OTHER_SLOT
    return (f'nothing helps as long as servers cannot have {because_of}: '
            f'{reason}')


def slot_item(functions: Functions) -> dict[str, str]:
    """Return an entry that names all functions of a slot, as JSON has it."""
    vendors = {function.vendor_id for function in functions}
    slot = str(functions[0].address).rpartition('.')[0]
    return {**({'vendor_id': vendors.pop()} if len(vendors) == 1 else {}),
            'address': f'{slot}.*'}


def _are_one_slot(functions) -> bool:
    return len({(function.address.domain, function.address.bus,
                 function.address.slot) for function in functions}) == 1
