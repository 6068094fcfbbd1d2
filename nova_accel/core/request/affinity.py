# SPDX-License-Identifier: Apache-2.0
"""What a Profile's groups want of each other's places, rule by rule.

A flavor carries the rules from nova-api to scheduler and compute, in extra
specs ``nova_accel:affinity0``, ``nova_accel:affinity1`` and so on, each as
``required same pcie_switch 0,8;1,9``: a weight, a wish, a key and, between
semicolons, the members of one rule each (``0-3`` for ACCEL0 to ACCEL3). A
value that ends with a comma goes on in the next.
"""

import collections.abc
import dataclasses
import functools
import itertools
import re

from nova_accel.core import errors

#: How much it matters.
REQUIRED, PREFERRED, OFF = 'required', 'preferred', 'off'

#: What a rule can speak of, as in
#: :class:`nova_accel.core.model.Place`;
#: a link domain is what devices reach each other in over links of their own
#: (NVLink, xGMI).
KEYS = ('numa_node', 'pcie_root', 'pcie_switch', 'device', 'link_domain')

#: Members beside groups, of ``same numa_node`` only: the NUMA nodes that the
#: guest is put on, and those of its PCI network devices.
GUEST, NETWORK = 'guest', 'network'

#: The largest weight.
MAX_WEIGHT = 100

#: The extra specs' common beginning.
PREFIX = 'nova_accel:affinity'

_OTHERS = (GUEST, NETWORK)
# Where these are distinct, NUMA nodes may have to be.
_NODES = ('numa_node', 'pcie_root')
_GROUP = 'ACCEL'
# Longest value of an extra spec, in characters: Nova's limit.
_MAX_LENGTH = 255
_SAME, _DISTINCT = 'same', 'distinct'
_NAME = re.compile(rf'{_GROUP}(0|[1-9]\d{{0,2}})', re.ASCII)
_EXTRA_SPEC = re.compile(rf'{PREFIX}(0|[1-9]\d{{0,3}})', re.ASCII)
_VALUE = re.compile(
    rf'({REQUIRED}|{PREFERRED}:([1-9]\d{{0,2}})) '
    rf'({_SAME}|{_DISTINCT}) (\w+) (\S+)', re.ASCII)
_RANGE = re.compile(r'(\d{1,3})(?:-(\d{1,3}))?', re.ASCII)


@dataclasses.dataclass(frozen=True)
class Rule:
    """One wish about the places of some groups.

    :param key: one of :data:`KEYS`
    :param same: True where they are to be the same, False where each is to
        have its own
    :param groups: names (``ACCEL0``), with :data:`GUEST` or :data:`NETWORK`;
        they are put in order
    :param weight: 0 for a rule that must hold; else, from 1 to
        :data:`MAX_WEIGHT`, what it counts for against the other rules
    :raises errors.ProfileError: if it is none of that
    """

    key: str
    same: bool
    groups: tuple[str, ...]
    weight: int = 0

    def __post_init__(self):
        thing = f'affinity {errors.quote(self.key)}'
        if self.key not in KEYS:
            raise errors.ProfileError(thing, 'there is no such key',
                                      'there are ' + ', '.join(KEYS))
        if not 0 <= self.weight <= MAX_WEIGHT:
            raise errors.ProfileError(
                thing, f'weight {self.weight} is not from 1 to {MAX_WEIGHT}')
        for name in self.groups:
            if name not in _OTHERS and not _NAME.fullmatch(name):
                raise errors.ProfileError(
                    thing, f'{errors.quote(name)} is no group')
        object.__setattr__(self, 'groups',
                           tuple(sorted(self.groups, key=_order)))
        self._check_members(thing)

    def _check_members(self, thing: str) -> None:
        if len(set(self.groups)) < len(self.groups):
            raise errors.ProfileError(thing, 'names a group twice',
                                      'name it once')
        if not self.members:
            raise errors.ProfileError(thing, 'names no group', 'name one '
                                      'beside the guest and the network')
        others = [name for name in self.groups if name in _OTHERS]
        if others and not (self.same and self.key == 'numa_node'):
            raise errors.ProfileError(
                thing, f'{others[0]} can be the same numa_node as a group, '
                'and nothing else')

    @functools.cached_property
    def members(self) -> tuple[str, ...]:
        """The groups alone."""
        return tuple(name for name in self.groups if name not in _OTHERS)

    @property
    def title(self) -> str:
        """Wish and key, ``same numa_node``."""
        return f'{_SAME if self.same else _DISTINCT} {self.key}'

    def __str__(self):
        names = [(f'{_GROUP}{first}' if first == last else
                  f'{_GROUP}{first}-{last}')
                 for first, last in _ranges(self.members)]
        names += self.groups[len(self.members):]
        return (f'{self.title} of {", ".join(names)} '
                + (f'(preferred, weight {self.weight})' if self.weight else
                   '(required)'))


def dumps(rules: collections.abc.Iterable[Rule]) -> dict[str, str]:
    """The rules as extra specs; :func:`loads` gives the same rules again."""
    values = []
    for head, alike in itertools.groupby(rules, key=_head):
        values += _values(head, [_members(rule) for rule in alike])
    return {f'{PREFIX}{index}': value for index, value in enumerate(values)}


def loads(extra_specs: collections.abc.Mapping[str, str]) -> tuple[Rule, ...]:
    """The rules in a flavor's extra specs.

    :raises errors.ProfileError: naming the key, if there is one that cannot
        be understood: a rule that must hold is not left out silently
    """
    values = _numbered(extra_specs)
    rules: list[Rule] = []
    while values:
        index, text = values.pop(0)
        while text.endswith(',') and values:
            text += values.pop(0)[1]
        try:
            rules += _parse(text)
        except (ValueError, errors.ProfileError) as error:
            raise errors.ProfileError(
                f'extra spec {PREFIX}{index}', f'{errors.quote(text)} cannot '
                f'be understood: {getattr(error, "reason", error)}',
                'it may be a newer nova_accel\'s; upgrade this one') from None
    return tuple(rules)


def concern(rules: collections.abc.Iterable[Rule], member: str) -> bool:
    """Whether a rule is about the guest, or the network."""
    return any(member in rule.groups for rule in rules)


def numa_rules(groups: collections.abc.Mapping,
           written: collections.abc.Iterable[Rule] = ()) -> tuple[Rule, ...]:
    """What the groups' own ``numa`` says, as rules.

    :param groups: nova_accel.core.request.device_profile.Group by name
    :param written: the rules that there are beside

    Those that require it share a node of the guest's; those that prefer it
    are to be near these, each other and the guest. Of groups that are rather
    to be apart one is: to be near is what a group prefers by default, and
    would undo what somebody wrote.
    """
    required = tuple(name for name, group in groups.items()
                     if group.numa == REQUIRED)
    apart = _apart(required, written)
    near = tuple(name for name, group in groups.items()
                 if group.numa == REQUIRED
                 or group.numa == PREFERRED and name not in apart)
    rules = []
    if required:
        rules.append(Rule('numa_node', True, (*required, GUEST)))
    if len(near) > len(required):
        rules.append(Rule('numa_node', True, (*near, GUEST), 1))
    return tuple(rules)


def _apart(required, written) -> set[str]:
    """The groups that are to be away from another, which stands for them."""
    found: set[str] = set()
    for rule in written:
        if rule.weight and not rule.same and rule.key in _NODES:
            stays = next((name for name in rule.members if name in required),
                         rule.members[0])
            found.update(name for name in rule.members if name != stays)
    return found


def isolated(names: tuple[str, ...]) -> tuple[Rule, ...]:
    """What ``group_policy: isolate`` says of groups, as rules."""
    return (Rule('device', False, names),) if len(names) > 1 else ()


def _order(name: str) -> tuple[int, int]:
    if name in _OTHERS:
        return 1, _OTHERS.index(name)
    return 0, int(name.removeprefix(_GROUP))


def _head(rule: Rule) -> str:
    strength = (f'{PREFERRED}:{rule.weight}' if rule.weight else
                REQUIRED)
    return f'{strength} {rule.title} '


def _members(rule: Rule) -> str:
    numbers = [str(first) if first == last else f'{first}-{last}'
               for first, last in _ranges(rule.members)]
    return ','.join([*numbers, *rule.groups[len(rule.members):]])


def _ranges(names) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for number in (int(name.removeprefix(_GROUP)) for name in names):
        if found and found[-1][1] == number - 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found


def _values(head: str, members: list[str]) -> collections.abc.Iterator[str]:
    text = head + members[0]
    for more in members[1:]:
        if len(text) + 1 + len(more) > _MAX_LENGTH:
            yield from _pieces(text)
            text = head + more
        else:
            text += ';' + more
    yield from _pieces(text)


def _pieces(text: str) -> collections.abc.Iterator[str]:
    while len(text) > _MAX_LENGTH:
        end = text.rindex(',', 0, _MAX_LENGTH) + 1
        yield text[:end]
        text = text[end:]
    yield text


def _numbered(extra_specs) -> list[tuple[int, str]]:
    found = []
    for key, value in extra_specs.items():
        if not key.startswith(PREFIX):
            continue
        match = _EXTRA_SPEC.fullmatch(key)
        if not match:
            raise errors.ProfileError(
                f'extra spec {errors.plain(key)}', 'its name ends with no '
                'number', 'it may be a newer nova_accel\'s')
        found.append((int(match[1]), value))
    found.sort()
    for index, (number, _value) in enumerate(found):
        if index != number:
            raise errors.ProfileError(f'extra spec {PREFIX}{index}',
                                      'is missing; there are later ones',
                                      'set the profile on the flavor again')
    return found


def _parse(text: str) -> collections.abc.Iterator[Rule]:
    match = _VALUE.fullmatch(text)
    if not match:
        raise ValueError('it is not "required same numa_node 0-3" or like it')
    _strength, weight, relation, key, sets = match.groups()
    for members in sets.split(';'):
        names = [name for part in members.split(',')
                 for name in _names(part)]
        yield Rule(key, relation == _SAME, tuple(names), int(weight or 0))


def _names(part: str) -> list[str]:
    if part in _OTHERS:
        return [part]
    match = _RANGE.fullmatch(part)
    if not match:
        raise ValueError(f'{errors.quote(part)} is no group')
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise ValueError(f'{errors.quote(part)} runs backwards')
    return [f'{_GROUP}{number}' for number in range(first, last + 1)]
