# SPDX-License-Identifier: Apache-2.0
"""Read the affinity section of a profile's document as Rules.

::

    affinity:
    - same: pcie_switch
      groups: [gpu, nic]
      each: true
    - distinct: numa_node
      policy: preferred
      weight: 5
"""

import collections.abc
import typing

from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core.request import affinity

# Devices that share the key share all the values.
_INNER_FIRST = tuple(level.key for level in reversed(model.LEVELS))
_WITHIN = {'device': ('device', *_INNER_FIRST, 'link_domain'),
           'link_domain': ('link_domain',),
           **{key: _INNER_FIRST[number:]
              for number, key in enumerate(_INNER_FIRST)}}

#: The most rules of a profile after ``each`` is expanded.
MAX_RULES = 256

#: By a group's name and index in the document, its names in a flavor: several
#: if the group has a ``count``.
Names = collections.abc.Mapping[str | int, tuple[str, ...]]

#: An item of a checked document's affinity section.
Item = collections.abc.Mapping[str, typing.Any]

#: The rules that the profile's other keys imply, with the key.
Implied = collections.abc.Mapping[affinity.Rule, str]


def parse(written: collections.abc.Iterable[Item], names: Names,
          where: str) -> tuple[affinity.Rule, ...]:
    """Return the rules of a checked document's affinity section.

    :param where: the profile, for messages
    :raises errors.ProfileError: naming the rule, the reason and the remedy
    """
    rules: list[affinity.Rule] = []
    for index, item in enumerate(written):
        here = f'{where}, affinity {index}'
        rules.extend(_rules(item, names, here))
        if len(rules) > MAX_RULES:
            raise errors.ProfileError(
                here, f'the profile comes to more than {MAX_RULES} rules',
                'write fewer; one rule can name any number of groups')
    return tuple(rules)


def check(rules: collections.abc.Iterable[affinity.Rule], others: Implied,
          where: str) -> None:
    """Refuse required rules that contradict each other.

    :raises errors.ProfileError: naming the rules that contradict each other
    """
    required = [rule for rule in (*rules, *others) if not rule.weight]
    joining = {key: [rule for rule in required
                     if rule.same and key in _WITHIN[rule.key]]
               for key in affinity.KEYS}
    together = {key: _together(same) for key, same in joining.items()}
    for apart in required:
        pair = None if apart.same else _pair(apart, together[apart.key])
        if pair:
            raise errors.ProfileError(
                where, f'wants {_words(joining[apart.key], pair, others)} and '
                f'the {apart}{_by(apart, others)}, which contradict each '
                'other',
                'leave one of them out, or write "policy: preferred"')


def _rules(item: Item, names: Names, here: str,
           ) -> collections.abc.Iterator[affinity.Rule]:
    same = 'same' in item
    if same == ('distinct' in item):
        raise errors.ProfileError(
            here, 'has neither or both of same and distinct',
            'write one of them')
    key = item['same' if same else 'distinct']
    weight = _weight(item, here)
    members = [_members(name, names, here)
               for name in item.get('groups', _all(names))]
    others = [member for member in item.get('groups', ())
              if member in (affinity.GUEST, affinity.NETWORK)]
    if others and not (same and key == 'numa_node'):
        raise errors.ProfileError(
            here, f'{others[0]} has only a NUMA node to share',
            'write "same: numa_node"')
    for groups in _sets(members, bool(item.get('each')), here):
        if len(groups) < 2:
            raise errors.ProfileError(
                here, 'is about one group only',
                'name a second one, or give it a count')
        yield _rule(key, same, groups, weight, here)


def _rule(key: str, same: bool, groups: tuple[str, ...], weight: int,
          here: str) -> affinity.Rule:
    try:
        return affinity.Rule(key, same, groups, weight)
    except errors.ProfileError as error:
        # Name the place in the document, which the rule does not know.
        raise errors.ProfileError(here, error.reason, error.remedy) from None


def _all(names: Names) -> list[int]:
    """Return the index of every group."""
    return [name for name in names if isinstance(name, int)]


def _weight(item: Item, here: str) -> int:
    if item.get('policy', 'required') == 'preferred':
        return int(item.get('weight', 1))
    if 'weight' in item:
        raise errors.ProfileError(
            here, 'has a weight, but is required',
            'write "policy: preferred", or leave the weight out')
    return 0


def _members(name: str | int, names: Names, here: str) -> tuple[str, ...]:
    if isinstance(name, str) and name in (affinity.GUEST, affinity.NETWORK):
        return (name,)
    if name not in names:
        known = ', '.join(str(known) for known in names)
        raise errors.ProfileError(
            here, f'there is no group {errors.quote(str(name))}',
            f'groups have a name or a number: {known}')
    return names[name]


def _sets(members: collections.abc.Sequence[tuple[str, ...]], each: bool,
          here: str) -> list[tuple[str, ...]]:
    """Return the groups of each rule that an item stands for."""
    if not each:
        # A group that is named twice counts once.
        return [tuple(dict.fromkeys(
            name for group in members for name in group))]
    counts = {len(group) for group in members}
    if len(counts) > 1 or len(members) < 2:
        raise errors.ProfileError(
            here, '"each" combines groups of one count, these have '
            + ' and '.join(str(count) for count in sorted(counts)),
            'name two groups or more, of the same count')
    return list(zip(*members, strict=True))


def _together(rules: collections.abc.Iterable[affinity.Rule],
              ) -> dict[str, str]:
    """Return a representative of each member of ``same`` rules.

    Members that chains of rules join have the same one. "Same" is transitive.
    Link domains may overlap, but ``distinct`` forbids chains of them, too.
    """
    parent: dict[str, str] = {}

    def find(name: str) -> str:
        while parent.setdefault(name, name) != name:
            name = parent[name]
        return name

    for rule in rules:
        for name in rule.members:
            parent[find(name)] = find(rule.members[0])
    return {name: find(name) for name in parent}


def _pair(apart: affinity.Rule,
          together: collections.abc.Mapping[str, str],
          ) -> tuple[str, str] | None:
    """Return two members of a ``distinct`` rule that ``same`` rules join."""
    first: dict[str, str] = {}
    for name in apart.members:
        other = first.setdefault(together.get(name, name), name)
        if other != name:
            return other, name
    return None


def _words(rules: collections.abc.Sequence[affinity.Rule],
           pair: tuple[str, str], others: Implied) -> str:
    """Describe the rules that join two groups."""
    chain = _chain(rules, *pair)
    if len(chain) == 1:
        return f'the {chain[0]}{_by(chain[0], others)}'
    names = dict.fromkeys(name for rule in chain for name in rule.members)
    # A chain of rules joins groups by the widest of its keys.
    key = min((rule.key for rule in chain),
              key=lambda key: len(_WITHIN[key]))
    return (f'the {affinity.Rule(key, True, tuple(names))} that follows from '
            f'{len(chain)} rules')


def _chain(rules: collections.abc.Sequence[affinity.Rule], one: str,
           other: str) -> tuple[affinity.Rule, ...]:
    """Return the shortest chain of rules that joins two groups."""
    chains: list[tuple[str, tuple[affinity.Rule, ...]]] = [(one, ())]
    seen = {one}
    for name, chain in chains:
        if name == other:
            return chain
        for rule in rules:
            if name in rule.members:
                chains += [(member, (*chain, rule)) for member in rule.members
                           if member not in seen]
                seen.update(rule.members)
    return ()


def _by(rule: affinity.Rule, others: Implied) -> str:
    return f' by {others[rule]}' if rule in others else ''
