# SPDX-License-Identifier: Apache-2.0
"""Affinity rules: how the devices of a Profile's groups lie together.

A flavor carries the rules from nova-api to nova-scheduler and nova-compute in
extra specs ``nova_accel:affinity0``, ``nova_accel:affinity1`` and so on. A
value such as ``required same pcie_switch 0,8;1,9`` has a strength, a relation,
a key, and the members of one rule or of several, separated by semicolons
(``0-3`` for ACCEL0 to ACCEL3). A value that ends with a comma continues in
the next extra spec.
"""

import collections.abc
import dataclasses
import functools
import itertools
import re

from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core.request import profile_group

#: How strong a rule is.
REQUIRED, PREFERRED, OFF = (profile_group.REQUIRED, profile_group.PREFERRED,
                            profile_group.OFF)

#: What a rule can be about, as in :class:`nova_accel.core.model.Place`. The
#: devices of a link domain have links to each other (NVLink, xGMI).
KEYS = (*(level.key for level in model.LEVELS), 'device', 'link_domain')

#: Members that are not groups, of ``same numa_node`` only: the NUMA nodes of
#: the guest, and those of its PCI network devices.
GUEST, NETWORK = 'guest', 'network'

#: The largest weight.
MAX_WEIGHT = 100

#: The prefix of the extra specs.
PREFIX = 'nova_accel:affinity'

_OTHERS = (GUEST, NETWORK)
# Devices with distinct ones of these may have to be on distinct NUMA nodes.
_NODES = tuple(level.key for level in model.LEVELS if not level.optional)
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
    """A rule about the places of some groups' devices.

    :param key: one of :data:`KEYS`
    :param same: True if all share one place, False if each has its own
    :param groups: names (``ACCEL0``), also :data:`GUEST` or :data:`NETWORK`;
        the rule sorts them
    :param weight: 0 for a required rule; 1 to :data:`MAX_WEIGHT` for a
        preferred one, relative to the other rules
    :raises errors.ProfileError: if a value is invalid
    """

    key: str
    same: bool
    groups: tuple[str, ...]
    weight: int = 0

    def __post_init__(self) -> None:
        thing = f'affinity {errors.quote(self.key)}'
        if self.key not in KEYS:
            raise errors.ProfileError(thing, 'there is no such key',
                                      'the keys are ' + ', '.join(KEYS))
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
            raise errors.ProfileError(thing, 'names no group',
                                      'name at least one')
        others = [name for name in self.groups if name in _OTHERS]
        if others and not (self.same and self.key == 'numa_node'):
            raise errors.ProfileError(
                thing, f'{others[0]} is allowed in "same numa_node" only')

    @functools.cached_property
    def members(self) -> tuple[str, ...]:
        """The groups without guest and network."""
        return tuple(name for name in self.groups if name not in _OTHERS)

    @property
    def title(self) -> str:
        """Relation and key, ``same numa_node``."""
        return f'{_SAME if self.same else _DISTINCT} {self.key}'

    def __str__(self) -> str:
        names = [(f'{_GROUP}{first}' if first == last else
                  f'{_GROUP}{first}-{last}')
                 for first, last in _ranges(self.members)]
        names += self.groups[len(self.members):]
        return (f'{self.title} of {", ".join(names)} '
                + (f'(preferred, weight {self.weight})' if self.weight else
                   '(required)'))


def dumps(rules: collections.abc.Iterable[Rule]) -> dict[str, str]:
    """Return the rules as extra specs, which :func:`loads` reads."""
    values: list[str] = []
    for head, similar in itertools.groupby(rules, key=_head):
        values += _values(head, [_members(rule) for rule in similar])
    return {f'{PREFIX}{index}': value for index, value in enumerate(values)}


def loads(extra_specs: collections.abc.Mapping[str, str]) -> tuple[Rule, ...]:
    """Return the rules in a flavor's extra specs.

    :raises errors.ProfileError: naming the key, if a value is invalid. It may
        be a required rule, so it is not skipped.
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
                'upgrade nova-accel if a newer version wrote it') from None
    return tuple(rules)


def has_member(rules: collections.abc.Iterable[Rule], member: str) -> bool:
    """Whether any rule has this member, :data:`GUEST` or :data:`NETWORK`."""
    return any(member in rule.groups for rule in rules)


def numa_rules(groups: profile_group.Groups,
               written: collections.abc.Iterable[Rule] = (),
               ) -> tuple[Rule, ...]:
    """Return the groups' key ``numa`` as rules.

    Groups that require it share one of the guest's NUMA nodes. Groups that
    prefer it should share that node with them, with each other and with the
    guest. Of groups that a written rule prefers to be apart, one only should:
    a default must not weaken a written rule.

    :param written: the other rules of the profile
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


def _apart(required: collections.abc.Container[str],
           written: collections.abc.Iterable[Rule]) -> set[str]:
    """Return all but one of the groups that each preferred rule separates.

    The one is a group that requires its NUMA node, if there is such a group.
    """
    found: set[str] = set()
    for rule in written:
        if rule.weight and not rule.same and rule.key in _NODES:
            stays = next((name for name in rule.members if name in required),
                         rule.members[0])
            found.update(name for name in rule.members if name != stays)
    return found


def isolation_rules(names: tuple[str, ...]) -> tuple[Rule, ...]:
    """Return ``group_policy: isolate`` of some groups as rules."""
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


def _ranges(names: collections.abc.Iterable[str],
            ) -> list[tuple[int, int]]:
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


def _numbered(extra_specs: collections.abc.Mapping[str, str],
              ) -> list[tuple[int, str]]:
    found = []
    for key, value in extra_specs.items():
        if not key.startswith(PREFIX):
            continue
        match = _EXTRA_SPEC.fullmatch(key)
        if not match:
            raise errors.ProfileError(
                f'extra spec {errors.plain(key)}', 'its name does not end '
                'with a number',
                'upgrade nova-accel if a newer version wrote it')
        found.append((int(match[1]), value))
    found.sort()
    for index, (number, _value) in enumerate(found):
        if index != number:
            raise errors.ProfileError(f'extra spec {PREFIX}{index}',
                                      'is missing, but later ones exist',
                                      'set the profile on the flavor again')
    return found


def _parse(text: str) -> collections.abc.Iterator[Rule]:
    match = _VALUE.fullmatch(text)
    if not match:
        raise ValueError(
            'it does not look like "required same numa_node 0-3"')
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
