# SPDX-License-Identifier: Apache-2.0
"""What a profile's document says of devices that belong together, as Rules.

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
from nova_accel.core.request import affinity

# What has the left in common has the right in common as well.
_WITHIN = {'device': ('device', 'pcie_switch', 'pcie_root', 'numa_node',
                      'link_domain'),
           'pcie_switch': ('pcie_switch', 'pcie_root', 'numa_node'),
           'pcie_root': ('pcie_root', 'numa_node'),
           'numa_node': ('numa_node',),
           'link_domain': ('link_domain',)}

#: Most rules that a profile may come to after ``each``.
MAX_RULES = 256

#: Names of a document's groups, as written and by index, to the names that
#: the groups have in a flavor: several where a group has a ``count``.
Names = collections.abc.Mapping[str | int, tuple[str, ...]]


def parse(written: collections.abc.Sequence[
        collections.abc.Mapping[str, typing.Any]], names: Names,
        where: str) -> tuple[affinity.Rule, ...]:
    """A checked document's affinity section.

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
                'write fewer; one can be about any number of groups')
    return tuple(rules)


def check(rules: collections.abc.Iterable[affinity.Rule],
          others: collections.abc.Mapping[affinity.Rule, str],
          where: str) -> None:
    """Refuse required rules that no host can keep together.

    :param others: the rules that the profile's other keys come to, with key
    :raises errors.ProfileError: naming those that contradict each other
    """
    required = [rule for rule in (*rules, *others) if not rule.weight]
    joined = {key: [rule for rule in required
                    if rule.same and key in _WITHIN[rule.key]]
              for key in affinity.KEYS}
    together = {key: _together(same) for key, same in joined.items()}
    for apart in required:
        pair = None if apart.same else _pair(apart, together[apart.key])
        if pair:
            raise errors.ProfileError(
                where, f'wants {_words(joined[apart.key], pair, others)} and '
                f'the {apart}{_by(apart, others)}, which cannot both be',
                'leave one of them out, or write "policy: preferred"')


def _rules(item, names, here) -> collections.abc.Iterator[affinity.Rule]:
    same = 'same' in item
    if same == ('distinct' in item):
        raise errors.ProfileError(
            here, 'says neither or both of same and distinct',
            'write one of them')
    key = item['same' if same else 'distinct']
    weight = _weight(item, here)
    members = [_members(name, names, here)
               for name in item.get('groups', _all(names))]
    others = [member for member in item.get('groups', ())
              if member in (affinity.GUEST, affinity.NETWORK)]
    if others and not (same and key == 'numa_node'):
        raise errors.ProfileError(
            here, f'{others[0]} has nothing but a NUMA node to have in '
            'common', 'write "same: numa_node"')
    for groups in _sets(members, bool(item.get('each')), here):
        if len(groups) < 2:
            raise errors.ProfileError(
                here, 'is about one group only',
                'name a second one, or give it a count')
        yield _rule(key, same, groups, weight, here)


def _rule(key, same, groups, weight, here) -> affinity.Rule:
    try:
        return affinity.Rule(key, same, groups, weight)
    except errors.ProfileError as error:
        # It does not know what it is part of.
        raise errors.ProfileError(here, error.reason, error.remedy) from None


def _all(names) -> list:
    return [name for name in names if isinstance(name, int)]


def _weight(item, here) -> int:
    if item.get('policy', 'required') == 'preferred':
        return int(item.get('weight', 1))
    if 'weight' in item:
        raise errors.ProfileError(
            here, 'has a weight, and is required anyhow',
            'write "policy: preferred", or leave the weight out')
    return 0


def _members(name, names, here) -> tuple[str, ...]:
    if name in (affinity.GUEST, affinity.NETWORK):
        return (name,)
    if name not in names:
        known = ', '.join(str(known) for known in names)
        raise errors.ProfileError(
            here, f'there is no group {errors.quote(str(name))}',
            f'groups have a name or a number: {known}')
    return names[name]


def _sets(members, each, here) -> list[tuple[str, ...]]:
    if not each:
        # Named twice is as good as once.
        return [tuple(dict.fromkeys(
            name for group in members for name in group))]
    counts = {len(group) for group in members}
    if len(counts) > 1 or len(members) < 2:
        raise errors.ProfileError(
            here, 'takes one of each group at a time, which have counts of '
            + ' and '.join(str(count) for count in sorted(counts)),
            'name two groups or more, of the same count')
    return list(zip(*members, strict=True))


def _together(rules) -> dict[str, str]:
    """For each member of ``same`` rules, one that stands for its like.

    What has the same root as a third has the same as each other; with link
    domains it is joined to each other by a chain of them at least, which
    ``distinct`` does not want either.
    """
    stand_in: dict[str, str] = {}

    def find(name):
        while stand_in.setdefault(name, name) != name:
            name = stand_in[name]
        return name

    for rule in rules:
        for name in rule.members:
            stand_in[find(name)] = find(rule.members[0])
    return {name: find(name) for name in stand_in}


def _pair(apart, together) -> tuple[str, str] | None:
    """Two members of a ``distinct`` rule that have the same all the same."""
    first: dict[str, str] = {}
    for name in apart.members:
        other = first.setdefault(together.get(name, name), name)
        if other != name:
            return other, name
    return None


def _words(rules, pair, others) -> str:
    """The rules by which two have the same, in words."""
    chain = _chain(rules, *pair)
    if len(chain) == 1:
        return f'the {chain[0]}{_by(chain[0], others)}'
    names = dict.fromkeys(name for rule in chain for name in rule.members)
    # They have in common what the widest of them is about.
    key = min((rule.key for rule in chain),
              key=lambda key: len(_WITHIN[key]))
    return (f'the {affinity.Rule(key, True, tuple(names))} that '
            f'{len(chain)} rules come to')


def _chain(rules, one: str, other: str) -> tuple[affinity.Rule, ...]:
    """The fewest rules that join two groups which rules join."""
    ways: list[tuple[str, tuple[affinity.Rule, ...]]] = [(one, ())]
    seen = {one}
    for name, chain in ways:
        if name == other:
            return chain
        for rule in rules:
            if name in rule.members:
                ways += [(member, (*chain, rule)) for member in rule.members
                         if member not in seen]
                seen.update(rule.members)
    return ()


def _by(rule, others) -> str:
    return f' by {others[rule]}' if rule in others else ''
