# SPDX-License-Identifier: Apache-2.0
"""nova-scheduler: which of the hosts that a server fits on.

Seams: ``nova.scheduler.weights.BaseHostWeigher``, of which the sum over all
weighers orders the hosts; ``nova.weights.normalize``;
``nova.scheduler.utils.get_weight_multiplier``.
"""

import collections.abc

from nova import weights as nova_weights
import nova.conf
from nova.scheduler import utils
from nova.scheduler import weights

from nova_accel import conf
from nova_accel.core.placement import inventory
from nova_accel.core.request import flavor_specs
from nova_accel.core.solver import fragmentation
from nova_accel.scheduler import candidates
from nova_accel.scheduler import choose_devices
from nova_accel.scheduler import multi_create
from nova_accel.scheduler import patches

CONF = nova.conf.CONF
conf.register_opts(CONF)

# A host without devices is 1 to a server without. Three of Nova's weighers
# prefer emptier hosts, and two to three more have their say; so that ours at
# ten is more than all of them at one, no host with devices comes near.
_BEST_WITH_DEVICES = 1 / 3


class AcceleratorWeigher(weights.BaseHostWeigher):
    """Keep together what later servers may want together.

    A server with devices goes where its preferred rules are kept best, where
    fewest devices stay free, and where they break up least of what lies
    together; one without goes where no devices are, while there is room. Each
    of the four has a multiplier. It calls nothing, and without the
    AcceleratorFilter, which chooses the devices, it has nothing to say of
    servers with devices.
    """

    # The parts are brought to this scale, and weighed with the multipliers
    # of each host, one by one; their sum is to stay what it is.
    minval, maxval = 0., 1.

    def __init__(self):
        super().__init__()
        # Where the filter is not enabled, Placement wants to hear it, too.
        patches.from_request_spec.install()

    def weigh_objects(self, weighed_obj_list, weight_properties):
        hosts = [weighed.obj for weighed in weighed_obj_list]
        if _wants_devices(hosts, weight_properties.flavor.extra_specs):
            parts = _with_devices(hosts)
        else:
            parts = _without_devices(hosts)
        return [sum(_multiplier(host, name) * weight
                    for name, weight in zip(parts, own, strict=True))
                for host, own in zip(
                    hosts, zip(*parts.values(), strict=True), strict=True)]

    def _weigh_object(self, obj, weight_properties):
        """Not called: how tight a host is, is seen beside the others."""
        raise NotImplementedError()


def _wants_devices(hosts, extra_specs) -> bool:
    """Whether a server is to have devices of ours.

    A flavor's other classes can be anybody's: persistent memory, a licence
    from provider.yaml. Without candidates, as in a rebuild, nobody can tell.
    """
    classes = flavor_specs.classes(extra_specs)
    found = [host for host in hosts if host.allocation_candidates]
    return bool(classes) and (not found or any(
        choose_devices.units(inventory.counting(host.uuid, classes),
                             host.allocation_candidates[0]['allocations'])
        for host in found))


def _with_devices(hosts) -> dict[str, list[float]]:
    """Each host's weights, 0 to 1, by the name of their multiplier."""
    rooms = [_room(host_state) for host_state in hosts]
    return {
        'accel_preferred_weight_multiplier': _kept(
            [_penalty(host_state) for host_state in hosts]),
        'accel_pack_weight_multiplier': _normal(
            -after.left for after in rooms),
        'accel_island_weight_multiplier': _normal(
            -after.broken for after in rooms)}


def _without_devices(hosts) -> dict[str, list[float]]:
    def weigh(host_state) -> float:
        units = candidates.summary(host_state).units.values()
        if not units:
            return 1.
        return (1 - fragmentation.free_share(units)) * _BEST_WITH_DEVICES

    return {'accel_avoid_weight_multiplier': [
        weigh(host_state) for host_state in hosts]}


def _kept(penalties: list[int]) -> list[float]:
    """1 for those with the least penalty, at most half of it for others.

    It is not normalized: the best is ahead by half however bad the worst is.
    """
    least = min(penalties, default=0)
    return [1 / (1 + penalty - least) for penalty in penalties]


def _penalty(host_state) -> int:
    """Of the preferred rules, with the candidate that Nova will claim."""
    if candidates.of(host_state) is None:
        return 0
    return host_state.allocation_candidates[0].penalty


def _normal(values: collections.abc.Iterable[float]) -> list[float]:
    # However small a difference is, it becomes 1 where there is no larger
    # one; so it must not be what is lost in adding up.
    return list(nova_weights.normalize([round(value, 6) for value in values]))


def _multiplier(host_state, name: str) -> float:
    return utils.get_weight_multiplier(host_state, name, CONF.nova_accel[name])


def _room(host_state) -> fragmentation.Room:
    """What becomes of a host with the candidate that Nova will claim."""
    answer = candidates.of(host_state)
    if answer is None:
        # A rebuild, and a host that was forced, can be without any.
        return fragmentation.Room(left=0., broken=0.)
    return fragmentation.after(
        candidates.available(host_state, answer,
                          multi_create.Siblings.of(host_state).given),
        choose_devices.devices(host_state.allocation_candidates[0]),
        candidates.summary(host_state).links)
