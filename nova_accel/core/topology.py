# SPDX-License-Identifier: Apache-2.0
"""How well a set of Regions lies together, and with the guest."""

import collections.abc
import dataclasses

from nova_accel.core import model
from nova_accel.core import profile as profiles


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What can be said of one way to serve a request.

    :param objection: why it will not do, or ''
    :param cost: for sorting, the lower the closer together
    """

    objection: str = ''
    cost: tuple[int, ...] = ()


def judge(wishes: collections.abc.Mapping[str, str],
          places: collections.abc.Mapping[str, model.Location | None],
          guest_nodes: frozenset[int] | None = None,
          only_node: int | None = None) -> Verdict:
    """Judge one way to serve a request.

    :param wishes: ``required``, ``preferred`` or ``off`` by group
    :param places: by group, None where nobody knows
    :param guest_nodes: the host's NUMA nodes that the guest is put on, or
        None for a guest without NUMA topology
    :param only_node: the host's node where it has just one; stands in for
        what a device of such a host does not say
    """
    nodes = {group: _node(places.get(group), only_node) for group in wishes}
    objection = _objection(
        {group for group, wish in wishes.items()
         if wish == profiles.REQUIRED}, places, nodes, guest_nodes)
    near = [group for group, wish in wishes.items() if wish != profiles.OFF]
    known = [places[group] for group in near if places.get(group)]
    off_guest = 0 if guest_nodes is None else sum(
        nodes[group] not in guest_nodes for group in near)
    return Verdict(objection, (
        off_guest, len({nodes[group] for group in near}),
        len({place.root for place in known}),
        len({place.switch or place.ports or place.root
             for place in known})))


def _node(place: model.Location | None, only_node: int | None) -> int | None:
    if place is None or place.numa_node is None:
        return only_node
    return place.numa_node


def _objection(required, places, nodes, guest_nodes) -> str:
    if any(places.get(group) is None for group in required):
        return 'the host does not say where its devices are'
    on = {nodes[group] for group in required}
    if len(on) > 1:
        return ('its devices are on NUMA nodes '
                + _list(on) + ', not on one')
    if on and guest_nodes is not None and not on <= guest_nodes:
        return (f'its devices are on NUMA node {_list(on)}, the guest on '
                + _list(guest_nodes))
    return ''


def _list(nodes) -> str:
    return ' and '.join(sorted('(unknown)' if node is None else str(node)
                               for node in nodes))
