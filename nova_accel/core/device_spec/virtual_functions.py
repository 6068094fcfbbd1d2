# SPDX-License-Identifier: Apache-2.0
"""Plan how many virtual functions each card gets.

The kernel changes the number only after it has removed all VFs. Source:
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

_RELEASE = ('move or delete the servers that hold its functions, and restart '
            'nova-compute')


@dataclasses.dataclass(frozen=True)
class Change:
    """A new number of virtual functions for a card.

    :param before: the number that it has now
    """

    card: model.Address
    number: int
    before: int


def wanted(card: model.Function, entry: spec_entry.Entry) -> int:
    """Return how many virtual functions an entry asks a card to have."""
    return (card.total_vfs if entry.num_vfs == entry_keys.ALL
            else entry.num_vfs or 0)


def needed(card: model.Function,
           held: collections.abc.Container[model.Address]) -> int:
    """Return how many VFs a card needs at least to have those that are held.

    After a reboot of the host it has none.
    """
    return max((index + 1 for index in range(min(card.total_vfs, _MOST))
                if card.vf(index) in held), default=0)


def choose(card: model.Function,
           entries: collections.abc.Iterable[spec_entry.Entry],
           ) -> spec_entry.Entry | None:
    """Return the entry that sets the number of VFs of a card."""
    if card.physfn or card.unreadable:
        return None
    matching = [entry for entry in entries if entry.matches(card)]
    # If several entries can name a card, any of them may have num_vfs.
    if matching and not matching[0].several:
        matching = matching[:1]
    return next((entry for entry in matching if entry.num_vfs
                 and entry.kind == matching[0].kind), None)


def plan(functions: collections.abc.Sequence[model.Function],
         entries: collections.abc.Sequence[spec_entry.Entry],
         foreign: collections.abc.Sequence[spec_entry.Claim] = (),
         held: collections.abc.Container[model.Address] = (),
         ) -> tuple[list[Change], list[errors.DeviceError]]:
    """Return the changes to make, and a problem for each that is refused.

    :param functions: every PCI function of the machine
    :param foreign: what another program claims
    :param held: the addresses that domains hold
    """
    changes, problems = [], []
    for card in functions:
        entry = choose(card, entries)
        # discovery.offer refuses a card that can have none, with the reason.
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
                f'it gets {_vfs(change.number)}, though '
                f'{entry.label} says num_vfs {entry.num_vfs}: a domain holds '
                f'{card.vf(change.number - 1)}', _RELEASE))
    return changes, problems


def _change(card: model.Function, entry: spec_entry.Entry,
            functions: collections.abc.Iterable[model.Function],
            foreign: collections.abc.Sequence[spec_entry.Claim],
            held: collections.abc.Container[model.Address],
            least: int) -> Change:
    number = wanted(card, entry)
    if number > card.total_vfs:
        raise _error(card, entry, f'it can have {card.total_vfs}',
                     f'write a number up to {card.total_vfs}, or "all"')
    vfs = [function for function in functions
           if function.physfn == card.address and not function.unreadable]
    if len(vfs) < card.num_vfs:
        raise _error(card, entry, f'only {len(vfs)} of them can be read',
                     'check the driver and the state of the card')
    for function in (card, *vfs):
        why, remedy = _why_not(function, foreign, held)
        # The host may use the card itself, only not its VFs.
        if not why and function is not card and function.use:
            why = f'the host uses {function.address}: {function.use}'
            remedy = 'stop using it, and restart nova-compute'
        if why:
            raise _error(card, entry, why, remedy)
    return Change(card.address, max(number, least),
                  max(card.num_vfs, len(vfs)))


def _why_not(function: model.Function,
             foreign: collections.abc.Iterable[spec_entry.Claim],
             held: collections.abc.Container[model.Address],
             ) -> tuple[str, str]:
    """Return why a function must not be removed, and the remedy."""
    at = function.address
    claim = next((claim for claim in foreign if claim.matches(function)),
                 None)
    if claim:
        return f'{claim.label} claims {at}', 'leave it to one of the two'
    if at in held:
        return f'a domain holds {at}', _RELEASE
    if function.open:
        # The kernel, and with it nova-compute, would wait for the program.
        return (f'a program has {at} open', 'stop it, and restart '
                'nova-compute')
    if any(mdev_type.instances for mdev_type in function.mdev_types):
        return (f'{at} has mediated devices', 'remove them, and restart '
                'nova-compute')
    return '', ''


def _error(card: model.Function, entry: spec_entry.Entry, reason: str,
           remedy: str) -> errors.DeviceError:
    return errors.DeviceError(
        f'device {card.address} ({card.ids})',
        f'it keeps {_vfs(card.num_vfs)}, though {entry.label} says num_vfs '
        f'{entry.num_vfs}: {reason}', remedy)


def _vfs(number: int) -> str:
    return errors.count(number, 'virtual function')
