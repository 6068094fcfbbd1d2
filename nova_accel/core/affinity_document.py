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

from nova_accel.core import affinity
from nova_accel.core import errors

# What has the left in common has the right in common as well.
_WITHIN = {'device': ('device', 'pcie_switch', 'pcie_root', 'numa_node',
                      'link_domain'),
           'pcie_switch': ('pcie_switch', 'pcie_root', 'numa_node'),
           'pcie_root': ('pcie_root', 'numa_node'),
           'numa_node': ('numa_node',),
           'link_domain': ('link_domain',)}

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
    rules = tuple(rule for index, item in enumerate(written) for rule in
                  _rules(item, names, f'{where}, affinity {index}'))
    _check_contradictions(rules, where)
    return rules


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
        yield affinity.Rule(key, same, groups, weight)


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


def _check_contradictions(rules, where) -> None:
    required = [rule for rule in rules if not rule.weight]
    for one in required:
        for other in required:
            if (one.same and not other.same and other.key in _WITHIN[one.key]
                    and len(set(one.groups) & set(other.groups)) > 1):
                raise errors.ProfileError(
                    where, f'wants the {one} and the {other}, which cannot '
                    'both be', 'leave one of them out, or write '
                    '"policy: preferred"')
