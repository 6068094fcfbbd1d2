# SPDX-License-Identifier: Apache-2.0
"""What has changed between two rounds of nova-compute's periodic tasks.

Each round has a snapshot: sets by key, such as the withheld units of each
resource provider. A change is what only one of two snapshots has, so that
nothing is told twice.
"""

import collections.abc
import dataclasses
import typing

from nova_accel.core import model
from nova_accel.core.placement import inventory

Key = typing.TypeVar('Key')
Item = typing.TypeVar('Item')

#: Sets by key.
Snapshot = collections.abc.Mapping[Key, frozenset[Item]]

#: A resource provider and a state of units of its Region.
State = tuple[str, model.WithheldState]


@dataclasses.dataclass(frozen=True)
class Changes(typing.Generic[Key, Item]):
    """The difference of two snapshots, by key.

    A key that only one of them has is in the difference even if its set is
    empty.
    """

    begun: Snapshot[Key, Item]
    ended: Snapshot[Key, Item]

    def __bool__(self) -> bool:
        return bool(self.begun or self.ended)


def between(before: Snapshot[Key, Item], now: Snapshot[Key, Item],
            ) -> Changes[Key, Item]:
    """Return what has begun and what has ended since the snapshot before."""
    return Changes(_without(now, before), _without(before, now))


def _without(these: Snapshot[Key, Item], others: Snapshot[Key, Item],
             ) -> Snapshot[Key, Item]:
    found = {key: items - others.get(key, frozenset())
             for key, items in these.items()}
    return {key: items for key, items in found.items()
            if items or key not in others}


def withheld(here: inventory.NodeInventory,
             ) -> dict[State, frozenset[model.Unit]]:
    """Return the withheld units of a compute node, by provider and state."""
    found: dict[State, set[model.Unit]] = {}
    for item in here.offered:
        for unit, state in item.region.withheld:
            found.setdefault((item.uuid, state), set()).add(unit)
    return {key: frozenset(units) for key, units in found.items()}


def told(here: inventory.NodeInventory) -> dict[State, frozenset[model.Unit]]:
    """Return the withheld units as of the last report to Placement.

    That is what the process before this one has told. Placement has the states
    of a provider, but not of which units: those of now are taken, so that only
    a state that begins or ends is a change.
    """
    now = withheld(here)
    return {state: now.get(state, frozenset()) for state in here.node.withheld}


def still(before: Snapshot[State, model.Unit],
          now: Snapshot[State, model.Unit], here: inventory.NodeInventory,
          ) -> dict[State, frozenset[model.Unit]]:
    """Return the present snapshot, with what is not known at present.

    The states of a provider whose device is missing or refused are kept: they
    have not ended.
    """
    return {**{key: units for key, units in before.items()
               if key[0] not in here.by_uuid}, **now}
