# SPDX-License-Identifier: Apache-2.0
"""Rank the hosts of a request before Nova examines them.

Nova takes some milliseconds for each host. Placement's answer tells which
devices of a host are free and where they are, which is enough to rank all
hosts in a fraction of that time: most of them look like another one. Nova
examines a shortlist of the best, and all others only if no host on the
shortlist passes its filters.
"""

import collections.abc
import dataclasses
import random
import typing

import nova.conf
from oslo_log import log as logging

from nova_accel.core import errors
from nova_accel.core.capacity import fit
from nova_accel.core.capacity import summaries
from nova_accel.core.placement import inventory
from nova_accel.core.request import flavor_request
from nova_accel.core.solver import arrange
from nova_accel.core.solver import search_budget
from nova_accel.scheduler import candidates
from nova_accel.scheduler import choose_devices
from nova_accel.scheduler import device_request
from nova_accel.scheduler import host_weights
from nova_accel.scheduler import no_valid_host
from nova_accel.scheduler import rejections
from nova_accel.scheduler import rounds as rounds_

LOG = logging.getLogger(__name__)

CONF = nova.conf.CONF

# Steps of the search of one host, enough for a first arrangement; of all other
# hosts after enough of them have one; and for better ones on the best hosts.
_STEPS, _MORE_STEPS, _BETTER_STEPS = 10, 1_000, 500

# Not random.Random: forked workers would start with the same state.
_CHANCE = random.SystemRandom()

#: Allocation candidates by uuid of the compute node's provider.
Found = collections.abc.Mapping[str, list[candidates.Candidate]]


class _Alike(typing.NamedTuple):
    """Hosts that look alike, and get the same units for the request.

    :param counts: units by resource class; empty if the candidates of a host
        differ, or have no units of ours
    """

    shape: summaries.Shape
    counts: collections.abc.Mapping[str, int]
    roots: list[str]

    @property
    def order(self) -> float:
        """Which to examine first: those that packing prefers."""
        packs = CONF.nova_accel.accel_pack_weight_multiplier >= 0
        return summaries.free(self.shape) * (1 if packs else -1)

    def choose(self, wanted: flavor_request.Request,
               steps: search_budget.Budget,
               with_reason: bool = False) -> fit.Fit:
        """Choose devices for one server."""
        host = summaries.view_of(self.shape)
        return fit.fit(wanted, self.counts, host.units, host.links,
                       CONF.nova_accel.pack_devices, steps, with_reason)


@dataclasses.dataclass(frozen=True)
class Ranking:
    """The hosts of a request, by uuid of the compute node's provider.

    :param fitting: those that have the devices, the best first
    :param unsure: those that may have them
    :param rejected: those that do not have them
    :param unranked: those that get no units of ours, or not always the same:
        the class can also be one of Nova's, or of provider.yaml
    :param later: those that have a later alternative of the profile only, the
        best first
    """

    wanted: flavor_request.Request
    fitting: list[str]
    unsure: list[str]
    rejected: list[_Alike]
    unranked: list[str]
    later: list[str]

    def rounds(self, enough: int) -> list[set[str]]:
        """Return the hosts that Nova examines, round by round.

        :param enough: number of ranked hosts of the first round
        """
        able = self.fitting + self.unsure + self.later
        first, all_hosts = ({*hosts, *self.unranked}
                            for hosts in (able[:enough], able))
        return [hosts for hosts in ([first] if first == all_hosts else
                                    [first, all_hosts]) if hosts]

    def objections(self) -> dict[str, arrange.Arrangement]:
        """Return why the other hosts do not have the devices.

        A reason takes longer than the ranking.
        """
        steps = search_budget.Budget(search_budget.REQUEST_STEPS,
                                     least=_STEPS, most=_STEPS)
        return {root: objection for alike in self.rejected
                for objection in [alike.choose(self.wanted, steps,
                                               with_reason=True).arranged]
                for root in alike.roots}


def rank(wanted: flavor_request.Request, found: Found,
         enough: int) -> Ranking:
    """Rank the hosts of a request.

    :param enough: how many fitting hosts are enough if the search takes long
    :raises errors.ProfileError: if a rule cannot be understood
    """
    fits: list[tuple[_Alike, fit.Fit]] = []
    unsure: list[str] = []
    rejected: list[_Alike] = []
    unranked: list[str] = []
    fitting = 0
    steps = search_budget.Budget(_MORE_STEPS, least=_STEPS, most=_STEPS)
    for alike in sorted(_alike(wanted, found), key=lambda alike: alike.order):
        if not alike.counts:
            unranked.extend(alike.roots)
            continue
        if fitting >= enough and steps.is_spent:
            unsure.extend(alike.roots)
            continue
        fitted = alike.choose(wanted, steps)
        if _may_have_better(wanted, fitted):
            unsure.extend(alike.roots)
        elif not fitted.arranged.objection:
            fits.append((alike, fitted))
            fitting += len(alike.roots) * (not wanted.rank(
                fitted.arranged.alternative))
        elif fitted.is_certain:
            rejected.append(alike)
        else:
            unsure.extend(alike.roots)
    by_rank: dict[bool, list] = {False: [], True: []}
    for alike, fitted in _improved(wanted, fits, enough):
        by_rank[wanted.rank(fitted.arranged.alternative) > 0].append(
            (alike, fitted))
    return Ranking(wanted, _sorted(wanted, by_rank[False]), unsure, rejected,
                   unranked, _sorted(wanted, by_rank[True]))


def _may_have_better(wanted: flavor_request.Request,
                     fitted: fit.Fit) -> bool:
    """Whether a host may have a better alternative than the one found.

    The place of devices decides about required rules only.
    """
    return bool(wanted.rank(fitted.arranged.alternative)) and not (
        fitted.arranged.is_final and (fitted.is_certain or all(
            rule.weight for rule in wanted.rules)))


def _improved(wanted: flavor_request.Request,
              fits: list[tuple[_Alike, fit.Fit]], enough: int,
              ) -> list[tuple[_Alike, fit.Fit]]:
    """Search the most promising hosts for devices that keep more rules."""
    steps = search_budget.Budget(_BETTER_STEPS)
    fits.sort(key=lambda item: _badness(wanted, item[1]))
    improved, kept = [], 0
    for alike, fitted in fits:
        arranged = fitted.arranged
        if any(_badness(wanted, fitted)) and not arranged.is_final and (
                kept < enough and not steps.is_spent):
            fitted = alike.choose(wanted, steps)
        improved.append((alike, fitted))
        kept += len(alike.roots) * (not any(_badness(wanted, fitted)))
    return improved


def _badness(wanted: flavor_request.Request,
             fitted: fit.Fit) -> tuple[int, int]:
    return wanted.rank(fitted.arranged.alternative), fitted.arranged.penalty


def _alike(wanted: flavor_request.Request,
           found: Found) -> collections.abc.Iterable[_Alike]:
    asked = summaries.Asked(wanted.classes, wanted.all_traits)
    hosts: dict[tuple, _Alike] = {}
    for root, of_host in found.items():
        shape = summaries.shape(of_host[0].answer.ours(root), root, asked)
        counting = inventory.counting(root, wanted.classes)
        counts, *others = (choose_devices.units(
            counting, candidate['allocations']) for candidate in of_host)
        if any(other != counts for other in others):
            counts.clear()
        hosts.setdefault((shape, frozenset(counts.items())), _Alike(
            shape, counts, [])).roots.append(root)
    return hosts.values()


def _sorted(wanted: flavor_request.Request,
            fits: list[tuple[_Alike, fit.Fit]]) -> list[str]:
    """Return the hosts, the best first; equal ones in random order."""
    weights = host_weights.sums(fits, host_weights.parts(
        [fitted.arranged.penalty for _alike, fitted in fits],
        [fitted.room for _alike, fitted in fits],
        [wanted.rank(fitted.arranged.alternative) for _alike, fitted in fits]),
        lambda _fits, name: CONF.nova_accel[name])
    return [root for _weight, _chance, root in sorted(
        (-round(weight, 6), _CHANCE.random(), root)
        for weight, (alike, _fitted) in zip(weights, fits, strict=True)
        for root in alike.roots)]


def rounds(spec_obj, instance_uuids: list[str] | None, found: Found | None,
           provider_summaries: collections.abc.Mapping[str, dict] | None,
           ) -> collections.abc.Iterator[
               collections.abc.Mapping[str, dict] | None]:
    """Yield the hosts that Nova examines, and more hosts if it failed.

    :param spec_obj: nova.objects.RequestSpec
    :param instance_uuids: the servers of the request
    :param found: the candidates; None, as the servers, without Placement
    :param provider_summaries: of Placement, by uuid
    :returns: summaries of the hosts; nothing if no host has the devices
    """
    wanted = _wanted(spec_obj) if instance_uuids and found else None
    if not (wanted and instance_uuids and found and provider_summaries):
        yield provider_summaries
        return
    hosts = _hosts(found, provider_summaries)
    enough = CONF.nova_accel.shortlist_size + len(instance_uuids)
    if len(hosts) <= enough:
        yield provider_summaries
        return
    ranking = rank(wanted, hosts, enough)
    LOG.debug('Hosts with the devices of %s: %d of %d; %d may have them',
              wanted.name, len(ranking.fitting), len(hosts),
              len(ranking.unsure))
    no_valid_host.ranked(ranking.objections)
    parts = ranking.rounds(enough)
    if not parts:
        _log(instance_uuids[0], wanted, ranking)
    for chosen in rounds_.fresh(spec_obj, hosts, (
            (part, part is not parts[-1]) for part in parts)):
        yield {uuid: summary for uuid, summary in provider_summaries.items()
               if summary['root_provider_uuid'] in chosen}


def _log(server: str, wanted: flavor_request.Request,
         ranking: Ranking) -> None:
    """Log why no host has the devices."""
    rejected = rejections.Rejections()
    for root, objection in ranking.objections().items():
        rejected.add(root, False, [objection])
    LOG.info('%s has no valid host for %s: %s', server, wanted.name,
             rejected.text())


def _wanted(spec_obj) -> flavor_request.Request | None:
    """Return the request for devices, if its hosts can be ranked."""
    if (spec_obj.force_hosts or spec_obj.force_nodes
            or not CONF.nova_accel.shortlist_size):
        return None
    try:
        wanted = device_request.of(spec_obj).checked()
    except errors.ProfileError:
        # The filter logs it.
        return None
    return wanted if wanted.classes else None


def _hosts(found, provider_summaries) -> Found:
    """Return the candidates of each host; none if they are not all known."""
    roots = {summary['root_provider_uuid']
             for summary in provider_summaries.values()}
    hosts = {root: found[root] for root in sorted(roots) if found.get(root)}
    if not all(isinstance(candidate, candidates.Candidate)
               for of_host in hosts.values() for candidate in of_host):
        return {}
    return hosts
