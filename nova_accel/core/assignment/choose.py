# SPDX-License-Identifier: Apache-2.0
"""Choose devices of a host for a flavor, as nova-scheduler does."""

import collections.abc

from nova_accel.core.request import flavor_request
from nova_accel.core.request import profile_group
from nova_accel.core.solver import arrange
from nova_accel.core.solver import search_budget


def choose(wanted: flavor_request.Request,
           groups: profile_group.Groups,
           available: collections.abc.Sequence[arrange.AvailableUnits],
           around: arrange.HostContext, pack: bool,
           budget: search_budget.Budget,
           with_reason: bool = True) -> arrange.Arrangement:
    """Choose a provider for every group, as :func:`.arrange.arrange` does.

    Regions that no server uses can certainly be programmed. A Region in use
    may have the requested bitstream, or another one. So groups with a
    bitstream get unused Regions if possible.

    :param groups: those of the flavor, with all other units that it asks for
        (:func:`.assign.with_other_units`)
    """
    if wanted.programs:
        unused = tuple(units for units in available
                       if units.resource_class not in wanted.programs
                       or units.free == units.total)
        found = arrange.arrange(groups, unused, wanted.rules, around, pack,
                                budget, with_reason=False)
        if not found.objection:
            return found
    return arrange.arrange(groups, available, wanted.rules, around, pack,
                           budget, with_reason)
