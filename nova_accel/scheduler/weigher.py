# SPDX-License-Identifier: Apache-2.0
"""nova-scheduler: the weigher, which orders the hosts that pass the filters.

Seams: ``nova.scheduler.weights.BaseHostWeigher`` (Nova adds up the weights of
all weighers); ``nova.scheduler.utils.get_weight_multiplier``.
"""

import nova.conf
from nova.scheduler import utils
from nova.scheduler import weights

from nova_accel import conf
from nova_accel.core.placement import inventory
from nova_accel.core.request import flavor_specs
from nova_accel.core.solver import fragmentation
from nova_accel.scheduler import candidates
from nova_accel.scheduler import choose_devices
from nova_accel.scheduler import host_weights
from nova_accel.scheduler import multi_create
from nova_accel.scheduler import patches
from nova_accel.scheduler import same_domain

CONF = nova.conf.CONF
conf.register_opts(CONF)

# For a server without devices, a host without devices weighs 1, and one with
# devices at most this. Nova has five to six weighers with a multiplier of 1;
# the difference times our multiplier of 10 must exceed their sum.
_BEST_WITH_DEVICES = 1 / 3


class AcceleratorWeigher(weights.BaseHostWeigher):
    """Keep groups of free devices whole for later servers.

    For a server with devices, prefer the host that has the first alternative
    of its profile, that best meets its preferred rules, on which the fewest
    devices stay free, and on which its devices break up the fewest groups. For
    a server without devices, prefer hosts without devices. Each of the five
    weights has a multiplier. The weigher sends no requests. Servers with
    devices are weighed only if AcceleratorFilter is enabled, which chooses the
    devices.
    """

    # Each part is normalized and multiplied here. With these limits, Nova
    # does not normalize their sum.
    minval, maxval = 0., 1.

    def __init__(self):
        super().__init__()
        # Placement needs the group_policy also if the filter is not enabled.
        patches.from_request_spec.install()

    def weigh_objects(self, weighed_obj_list, weight_properties):
        hosts = [weighed.obj for weighed in weighed_obj_list]
        if _wants_devices(hosts, weight_properties.flavor.extra_specs):
            parts = host_weights.parts(map(_penalty, hosts),
                                       map(_room, hosts),
                                       list(map(_rank, hosts)))
        else:
            parts = _without_devices(hosts)
        parts.update(same_domain.weights(hosts))
        return host_weights.sums(hosts, parts, _multiplier)

    def _weigh_object(self, obj, weight_properties):
        """Not called: weights depend on all hosts together."""
        raise NotImplementedError()


def _wants_devices(hosts, extra_specs) -> bool:
    """Whether a server requests devices of ours.

    The flavor can request classes that are not devices, such as persistent
    memory or a licence from provider.yaml; the candidates tell. True also if
    there are no candidates, as in a rebuild.
    """
    classes = flavor_specs.classes(extra_specs)
    found = [host for host in hosts if host.allocation_candidates]
    return bool(classes) and (not found or any(
        choose_devices.units(inventory.counting(host.uuid, classes),
                             host.allocation_candidates[0]['allocations'])
        for host in found))


def _without_devices(hosts) -> dict[str, list[float]]:
    def weigh(host_state) -> float:
        units = candidates.summary(host_state).units.values()
        if not units:
            return 1.
        return (1 - fragmentation.free_share(units)) * _BEST_WITH_DEVICES

    return {'accel_avoid_weight_multiplier': [
        weigh(host_state) for host_state in hosts]}


def _penalty(host_state) -> int:
    """Return the penalty of the candidate that Nova will claim."""
    if candidates.of(host_state) is None:
        return 0
    return host_state.allocation_candidates[0].penalty


def _rank(host_state) -> int:
    """Return the rank of its alternative."""
    if candidates.of(host_state) is None:
        return 0
    return host_state.allocation_candidates[0].rank


def _multiplier(host_state, name: str) -> float:
    return utils.get_weight_multiplier(host_state, name, CONF.nova_accel[name])


def _room(host_state) -> fragmentation.Room:
    """Return the host's room after Nova has claimed its first candidate."""
    answer = candidates.of(host_state)
    if answer is None:
        # For a rebuild and for a forced host there may be no candidates.
        return fragmentation.Room(left=0., broken=0.)
    return fragmentation.after(
        candidates.available(host_state, answer,
                             multi_create.Siblings.of(host_state).units),
        choose_devices.devices(host_state.allocation_candidates[0]),
        candidates.summary(host_state).links)
