# SPDX-License-Identifier: Apache-2.0
"""Texts about functions that servers can only get together."""

import collections.abc
import json

from nova_accel.core import model
from nova_accel.core import pci_class
from nova_accel.core.device_spec import spec_entry

Functions = collections.abc.Sequence[model.Function]

_NAME_ALL = 'name all of them in one entry, in place of {}: {}'
_OTHER_SLOT = ('put the card into a slot that has an IOMMU group of its own, '
               'or switch ACS on in the firmware')
_OF_THE_BOARD = '; nothing helps if the device is a part of the board'
_IF_WANTED = '; or name all of them in one entry, if servers may have them'


def describe(functions: Functions) -> str:
    """Return functions with what an operator has to know of each."""
    return ', '.join(map(_describe, functions))


def _describe(function: model.Function) -> str:
    if function.unreadable:
        return f'{function.address} (it cannot be read)'
    facts = [function.ids, pci_class.name(function.class_code)]
    if function.driver:
        facts.append(f'driver {function.driver}')
    if function.use:
        facts.append(f'the host uses it: {function.use}')
    return f'{function.address} ({", ".join(facts)})'


def remedy(functions: Functions,
           entries: collections.abc.Sequence[spec_entry.Entry],
           steps: collections.abc.Collection[str] = ()) -> str:
    """Return what helps if an entry does not name all functions of a unit.

    :param entries: those that name some of them; the first is the one that
        does not name all
    :param steps: what else is necessary before servers can get the unit
    """
    if not _are_one_slot(functions):
        # Such a disk may be one that the host needs.
        return _OTHER_SLOT + (_OF_THE_BOARD if steps or any(
            function.is_storage for function in functions)
            else _IF_WANTED)
    if any(function.console for function in functions):
        steps = ['give the host another console', *steps]
    item = {key: value for key, value in entries[0].item.items()
            if key not in ('vendor_id', 'product_id', 'address')}
    return ', and '.join([_NAME_ALL.format(
        ' and '.join(entry.label for entry in entries),
        json.dumps({**slot_item(functions), **item})),
        *dict.fromkeys(steps)])


def remedy_if_refused(functions: Functions, because_of: model.Address,
                      reason: str) -> str:
    """Return what helps if no entry can offer a unit as it is.

    :param because_of: the function for which it is refused
    """
    if not _are_one_slot(functions):
        return _OTHER_SLOT + _OF_THE_BOARD
    return (f'nothing helps as long as servers cannot have {because_of}: '
            f'{reason}')


def slot_item(functions: Functions) -> dict[str, str]:
    """Return an entry that names all functions of a slot, as JSON has it."""
    vendors = {function.vendor_id for function in functions}
    return {**({'vendor_id': vendors.pop()} if len(vendors) == 1 else {}),
            'address': f'{functions[0].slot}.*'}


def _are_one_slot(functions: Functions) -> bool:
    return len({function.slot for function in functions}) == 1
