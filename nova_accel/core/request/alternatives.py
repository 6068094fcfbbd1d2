# SPDX-License-Identifier: Apache-2.0
"""Alternatives of a group: sets of traits, the best one first.

All alternatives take the same amount of the same resource class, so a request
costs the same quota whichever it gets. Equal groups, as of ``count``, get the
same alternative. If several groups have alternatives, the order of the first
of them matters most.

An alternative is not sent to Placement: the provider of a resource class has
the traits of all its devices.
"""

import collections.abc
import dataclasses
import itertools
import math

from nova_accel.core import errors
from nova_accel.core.request import affinity
from nova_accel.core.request import fpga
from nova_accel.core.request import profile_group

#: The most combinations of alternatives in a profile. A host that has the
#: devices of none is searched for each of them.
MAX_COMBINATIONS = 16

#: Alternatives as :attr:`.profile_group.Group.any_of` has them.
AnyOf = tuple[tuple[str, ...], ...]


def parse(written: collections.abc.Iterable[collections.abc.Iterable[str]],
          traits: collections.abc.Mapping[str, str], here: str) -> AnyOf:
    """Return the alternatives of a group of a document.

    :param traits: ``required`` or ``forbidden`` by trait, of the group
    :param here: the group, for messages
    :raises errors.ProfileError: if one of them can never be chosen
    """
    any_of = tuple(tuple(sorted(set(one))) for one in written)
    own = {trait for trait, strength in traits.items()
           if strength == affinity.REQUIRED}
    for number, one in enumerate(any_of):
        for trait in one:
            if traits.get(trait, affinity.REQUIRED) != affinity.REQUIRED:
                raise errors.ProfileError(
                    here, f'alternative {number} requires trait {trait}, '
                    'which the group forbids', 'remove one of them')
            if fpga.is_function_trait(trait):
                raise errors.ProfileError(
                    here, f'alternative {number} requires a function of an '
                    'FPGA', 'write a profile for each function')
        for better, other in enumerate(any_of[:number]):
            if set(other) <= own.union(one):
                raise errors.ProfileError(
                    here, f'alternative {number} is never chosen: each device '
                    f'with its traits has those of alternative {better}',
                    'write the one with more traits first, or remove it')
    return any_of


def check(groups: collections.abc.Sequence[profile_group.Group], per: str,
          where: str) -> None:
    """Check the alternatives of all groups of a profile together.

    :param per: its ``per``, or ''
    :raises errors.ProfileError: naming the profile
    """
    choosing = _choosing(groups)
    if per and not choosing:
        raise errors.ProfileError(
            where, 'has per, but no group has any_of', 'remove per')
    if choosing and any(group.bitstream for group in groups):
        raise errors.ProfileError(
            where, 'has any_of and a bitstream, which fits one model of FPGA',
            'write a profile for each alternative')
    number = math.prod(len(group.any_of) for group in choosing)
    if number > MAX_COMBINATIONS:
        raise errors.ProfileError(
            where, f'its alternatives make {number} combinations; at most '
            f'{MAX_COMBINATIONS} are tried', 'write fewer alternatives')


def combinations(groups: profile_group.Groups,
                 ) -> collections.abc.Iterator[dict[str, profile_group.Group]]:
    """Yield the groups with each combination of alternatives, best first.

    :returns: groups that have no alternatives
    """
    choosing = _choosing(groups.values())
    for chosen in _chosen(choosing):
        yield {name: _with(group, chosen[choosing.index(group)])
               if group.any_of else group for name, group in groups.items()}


def names(groups: profile_group.Groups) -> list[str]:
    """Return what tells the combinations apart, in order.

    :returns: their traits as text, such as ``CUSTOM_A100``; empty if there are
        no alternatives
    """
    choosing = _choosing(groups.values())
    return [' and '.join(map(text, chosen))
            for chosen in _chosen(choosing)] if choosing else []


def text(one: collections.abc.Iterable[str]) -> str:
    """Return an alternative as text."""
    return '+'.join(one) or 'any'


def _choosing(groups: collections.abc.Iterable[profile_group.Group],
              ) -> list[profile_group.Group]:
    """Return the different groups that have alternatives."""
    found: list[profile_group.Group] = []
    for group in groups:
        if group.any_of and group not in found:
            found.append(group)
    return found


def _chosen(choosing: collections.abc.Iterable[profile_group.Group],
            ) -> collections.abc.Iterator[AnyOf]:
    """Yield an alternative of each group, in each combination."""
    # A flavor can have more than a profile: its keys can be written by hand.
    return itertools.islice(itertools.product(
        *(group.any_of for group in choosing)), MAX_COMBINATIONS)


def _with(group: profile_group.Group, one: collections.abc.Iterable[str],
          ) -> profile_group.Group:
    return dataclasses.replace(group, any_of=(), traits={
        **group.traits, **dict.fromkeys(one, affinity.REQUIRED)})
