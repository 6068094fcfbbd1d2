# SPDX-License-Identifier: Apache-2.0
"""Whether one server of a flavor fits on a host, and what it would take."""

import collections
import collections.abc
import dataclasses

from nova_accel.core import model
from nova_accel.core.assignment import assign
from nova_accel.core.assignment import choose
from nova_accel.core.request import flavor_request
from nova_accel.core.solver import arrange
from nova_accel.core.solver import fragmentation
from nova_accel.core.solver import search_budget

#: The units of a host.
Units = tuple[arrange.AvailableUnits, ...]


@dataclasses.dataclass(frozen=True)
class Fit:
    """The devices for one server, or the objection.

    :param taken: units by provider; empty if there is an objection
    :param units: of the host, before that
    """

    arranged: arrange.Arrangement
    taken: collections.abc.Mapping[str, int]
    units: Units
    links: model.Links

    @property
    def is_certain(self) -> bool:
        """Whether an objection stays if more is known of the host.

        A rule cannot be decided for devices whose place is unknown.
        """
        return self.arranged.kind != 'limit' and not any(
            None in (units.place.numa_node, units.place.pcie_root)
            for units in self.units)

    @property
    def room(self) -> fragmentation.Room:
        """The room that is left on the host with the server."""
        return fragmentation.after(self.units, self.taken, self.links)


def fit(wanted: flavor_request.Request,
        counts: collections.abc.Mapping[str, int], units: Units,
        links: model.Links, pack: bool, budget: search_budget.Budget,
        with_reason: bool = True) -> Fit:
    """Choose devices for one server.

    The NUMA nodes of the guest and of its network ports are not known here, so
    rules about these apply to the devices alone.

    :param counts: how many units the server gets, by resource class
    :param units: of the host, free or not
    :param pack, with_reason: as for :func:`.arrange.arrange`
    :raises errors.ProfileError: if a rule cannot be understood
    """
    groups = assign.with_other_units(wanted.groups, counts, units)
    if not groups:
        return Fit(arrange.Arrangement(objection='it asks for no devices',
                                       kind='group'), {}, units, links)
    found = choose.choose(wanted, groups, units,
                          arrange.HostContext(links=links), pack, budget,
                          with_reason)
    taken: collections.Counter[str] = collections.Counter()
    for name, provider in found.chosen.items():
        taken[provider] += sum(groups[name].resources.values())
    return Fit(found, taken, units, links)
