# SPDX-License-Identifier: Apache-2.0
"""How many virtual functions a card is to have, and whether it can have them.

The number can only be changed by taking away all that there are. Source:
Documentation/ABI/testing/sysfs-bus-pci (``sriov_numvfs``).
"""

import collections.abc
import dataclasses

from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core.device_spec import entry_keys
from nova_accel.core.device_spec import spec_entry

# The number of Routing IDs.
_MOST = 1 << 16

_LET_GO = ('move or delete the servers that hold its functions, and restart '
           'nova-compute')


@dataclasses.dataclass(frozen=True)
class Change:
    """A card's number of virtual functions as it is to be.

    :param before: how many it has now
    """

    card: model.PciAddress
    number: int
    before: int


def wanted(card: model.Function, entry: spec_entry.Entry) -> int:
    """How many virtual functions an entry wants a card of its to have."""
    return card.total_vfs if entry.num_vfs == entry_keys.ALL else entry.num_vfs


def needed(card: model.Function,
           held: collections.abc.Container[model.Address]) -> int:
    """How many it has to have, for domains to find those that they hold.

    A reboot of the host has taken all of them away.
    """
    return max((index + 1 for index in range(min(card.total_vfs, _MOST))
                if card.vf(index) in held), default=0)


def choose(card: model.Function,
           entries: collections.abc.Iterable[spec_entry.Entry],
           ) -> spec_entry.Entry | None:
    """The entry that says how many virtual functions a card is to have."""
    if card.physfn or card.unreadable:
        return None
    matching = [entry for entry in entries if entry.matches(card)]
    # Where several count, each can be the one that says it.
    if matching and not matching[0].several:
        matching = matching[:1]
    return next((entry for entry in matching if entry.num_vfs
                 and entry.kind == matching[0].kind), None)


def plan(functions: collections.abc.Sequence[model.Function],
         entries: collections.abc.Sequence[spec_entry.Entry],
         foreign: collections.abc.Sequence[spec_entry.Entry] = (),
         held: collections.abc.Container[model.Address] = (),
         ) -> tuple[list[Change], list[errors.DeviceError]]:
    """What has to be changed, and what cannot be.

    :param functions: every PCI function of the machine
    :param foreign: entries by which another program claims devices
    :param held: what domains hold
    """
    changes, problems = [], []
    for card in functions:
        entry = choose(card, entries)
        # What has none to offer, and why, the offer says.
        if not entry or not card.total_vfs:
            continue
        least = needed(card, held)
        if wanted(card, entry) == card.num_vfs >= least:
            continue
        try:
            change = _change(card, entry, functions, foreign, held, least)
        except errors.DeviceError as error:
            problems.append(error)
            continue
        changes.append(change)
        if change.number > wanted(card, entry):
            problems.append(errors.DeviceError(
                f'device {card.address} ({card.ids})',
                f'it gets {change.number} virtual functions, though '
                f'{entry.label} says num_vfs {entry.num_vfs}: a domain holds '
                f'{card.vf(change.number - 1)}', _LET_GO))
    return changes, problems


def _change(card, entry, functions, foreign, held, least) -> Change:
    number = wanted(card, entry)
    if number > card.total_vfs:
        raise _error(card, entry, f'it can have {card.total_vfs}',
                     f'write a number up to {card.total_vfs}, or "all"')
    vfs = [function for function in functions
           if function.physfn == card.address and not function.unreadable]
    if len(vfs) < card.num_vfs:
        raise _error(card, entry, f'only {len(vfs)} of them can be read',
                     'look for their driver and their health')
    for function in (card, *vfs):
        why, remedy = _why_not(function, foreign, held)
        # The host may go on using the card itself.
        if not why and function is not card and function.use:
            why = f'the host uses {function.address}: {function.use}'
            remedy = 'stop using it, and restart nova-compute'
        if why:
            raise _error(card, entry, why, remedy)
    return Change(card.address, max(number, least),
                  max(card.num_vfs, len(vfs)))


def _why_not(function, foreign, held) -> tuple[str, str]:
    """Why a function has to stay as it is, and what can be done."""
    at = function.address
    claim = next((claim for claim in foreign if claim.matches(function)),
                 None)
    if claim:
        return f'{claim.label} claims {at}', 'leave it to one of the two'
    if at in held:
        return f'a domain holds {at}', _LET_GO
    if function.open:
        # The kernel would wait for it, and nova-compute for the kernel.
        return (f'a program has {at} open', 'stop it, and restart '
                'nova-compute')
    if any(mdev_type.instances for mdev_type in function.mdev_types):
        return (f'{at} has mediated devices', 'remove them, and restart '
                'nova-compute')
    return '', ''


def _error(card, entry, reason, remedy) -> errors.DeviceError:
    return errors.DeviceError(
        f'device {card.address} ({card.ids})',
        f'it keeps {card.num_vfs} virtual functions, though {entry.label} '
        f'says num_vfs {entry.num_vfs}: {reason}', remedy)
