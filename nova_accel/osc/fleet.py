# SPDX-License-Identifier: Apache-2.0
"""Who has the units of each device, as a picture or a table shows it."""

import collections
import collections.abc
import dataclasses
import enum

from nova_accel.core import model
from nova_accel.core.placement import listing
from nova_accel.core.placement import providers
from nova_accel.osc import cloud


class State(enum.StrEnum):
    """What new servers can expect of units, the worst first."""

    FAULT = 'fault'
    CLEANING = 'cleaning'
    SET_ASIDE = 'aside'
    FREE = 'free'


# All other reasons are faults.
_STATES = {
    **{listing.REASONS[trait]: State.SET_ASIDE for trait in (
        providers.WITHHELD[model.WithheldState.DRAINED],
        providers.WITHHELD[model.WithheldState.NOT_STRICT],
        providers.NOT_NAMED)},
    listing.RESERVED: State.SET_ASIDE,
    **dict.fromkeys((model.WithheldState.DIRTY.value,
                     model.WithheldState.CLEANING.value), State.CLEANING)}


@dataclasses.dataclass(frozen=True)
class Share:
    """Units of a device that are in the same state.

    :param project: id of the project whose servers hold them, '' if none does
    """

    units: int
    state: State
    project: str = ''


@dataclasses.dataclass(frozen=True)
class Fleet:
    """Compute nodes, and who has their devices.

    :param totals: all units, free or not, by provider
    :param holders: who holds units, by provider
    :param projects: names of projects by id, '' if the name is not known
    :param closed: why compute nodes get no new servers, by name
    """

    hosts: collections.abc.Sequence[listing.Host]
    totals: collections.abc.Mapping[str, int]
    holders: collections.abc.Mapping[
        str, collections.abc.Collection[cloud.Consumer]]
    projects: collections.abc.Mapping[str, str]
    closed: collections.abc.Mapping[str, str]

    def ranked(self) -> list[str]:
        """Return the ids of the projects; who holds most units is first."""
        units = collections.Counter[str]()
        for host in self.hosts:
            for device in host.devices:
                for share in self.shares(device):
                    units[share.project] += share.units
        del units['']
        return sorted(units, key=lambda project: (-units[project], project))

    def shares(self, device: listing.Device) -> list[Share]:
        """Return the units of a device: held, withheld and free ones.

        The state of held units is what becomes of them after their server.
        """
        found = []
        for units in device.regions:
            held = collections.Counter[str]()
            for consumer in self.holders.get(units.provider, ()):
                held[consumer.project] += consumer.held(units)
            after = state(units.reasons)
            rest = self.totals[units.provider] - units.used - units.free
            # If some units are free, the reasons are not about held ones.
            found += [Share(amount, State.FREE if units.free else after,
                            project)
                      for project, amount in sorted((+held).items())]
            found += [Share(amount, look) for amount, look in (
                (rest, after), (units.free, State.FREE)) if amount > 0]
        return found

    def closing(self, host: listing.Host) -> str:
        """Return why a compute node gets no new servers, '' if it does."""
        return self.closed.get(host.name, '') or (
            f'drained: {host.drained.reason}'.removesuffix(': ')
            if host.drained else '')

    def name(self, project: str) -> str:
        """Return the name of a project, its id if that is not known."""
        return self.projects.get(project, '') or project


def state(reasons: collections.abc.Iterable[str]) -> State:
    """Return the worst state that reasons of :mod:`.listing` stand for."""
    return min((_STATES.get(reason, State.FAULT) for reason in reasons),
               key=list(State).index, default=State.FREE)
