# SPDX-License-Identifier: Apache-2.0
"""A Profile: what a server asks for, group by group.

A document writes groups in our format or in the one of Cyborg's API
(``resources:FPGA``, ``trait:CUSTOM_X``, ``accel:bitstream_id``). The schema
(:mod:`nova_accel.profiles.schema`) checks the structure of a document,
:func:`parse` its meaning.
"""

import collections
import collections.abc
import dataclasses
import itertools
import re
import typing
import uuid

from nova_accel.core import errors
from nova_accel.core import naming
from nova_accel.core.request import affinity
from nova_accel.core.request import affinity_document
from nova_accel.core.request import alternatives
from nova_accel.core.request import fpga
from nova_accel.core.request import profile_group

REQUIRED, PREFERRED, OFF = (affinity.REQUIRED, affinity.PREFERRED,
                            affinity.OFF)
FORBIDDEN = 'forbidden'

#: The group_policy that puts each group on a device of its own.
ISOLATE = 'isolate'

#: The prefix of a group's name in a flavor, before its number.
GROUP = 'ACCEL'

#: The most units of a resource class in one group.
MAX_AMOUNT = 1024
#: The most devices of a profile with guest_switches. Each can need two of the
#: 128 PCI bus numbers that a guest has for devices; 16 are for root buses.
MAX_BEHIND_SWITCHES = 56

#: The most groups of a profile after ``count`` is expanded.
MAX_GROUPS = 256

#: The most alternatives of a group.
MAX_ALTERNATIVES = 8
#: ``per: host``: each host offers its first alternative that fits.
CLOUD, HOST = 'cloud', 'host'

Group = profile_group.Group

# The only ``accel:`` keys that Cyborg ever acted on.
_BITSTREAM, _FUNCTION = 'bitstream_id', 'function_id'


@dataclasses.dataclass(frozen=True)
class Profile:
    """A device profile.

    :param groups: a group's index is part of its name, ``ACCEL0``
    :param group_policy: ``isolate`` for each group on a device of its own;
        ``none``, or None
    :param rules: affinity rules of groups by these names
    :param names: for each name that the profile itself gives to groups, the
        consecutive groups with it
    :param guest_switches: whether devices that share a PCIe switch of the
        host share one in the guest
    :param gpu_cliques: whether the guest is told which of its GPUs are behind
        one PCIe switch
    :param same_domain: whether the servers of a server group, or of one
        request, are to be in one host domain: ``required``, ``preferred`` or
        ''
    :param per: ``host`` if a server gets the first alternative that fits on
        its host, and not the first that fits anywhere; '' otherwise
    """

    name: str
    groups: tuple[Group, ...]
    description: str = ''
    group_policy: str | None = None
    rules: tuple[affinity.Rule, ...] = ()
    names: collections.abc.Mapping[str, tuple[str, ...]] = dataclasses.field(
        default_factory=dict)
    guest_switches: bool = False
    gpu_cliques: bool = False
    same_domain: str = ''
    per: str = ''


def group_name(index: int) -> str:
    """Return the name of a Profile's group in a flavor."""
    return f'{GROUP}{index}'


def parse(document: collections.abc.Mapping[str, typing.Any],
          source: str) -> Profile:
    """Return the Profile of a checked document.

    :param source: the file, for messages
    :raises errors.ProfileError: naming file, profile, group and key
    """
    name = document['name']
    where = f'profile {errors.quote(name)} in {source}'
    # A group that has no key yet is in the format of the others.
    cyborgs = is_cyborg_document(document['groups'])
    groups: list[Group] = []
    names: dict[str | int, tuple[str, ...]] = {}
    for index, written in enumerate(document['groups']):
        here = f'{where}, group {index}'
        # JSON Schema takes 2.0 for an integer, too.
        count = int(written.get('count', 1))
        if len(groups) + count > MAX_GROUPS:
            raise errors.ProfileError(
                here, f'the profile asks for more than {MAX_GROUPS} groups')
        names[index] = tuple(group_name(len(groups) + number)
                             for number in range(count))
        _add_name(names, written.get('name'), index, here)
        groups.extend([_group(written, cyborgs, here)] * count)
    # Cyborg's documents can have any other key.
    per = '' if cyborgs else document.get('per', '')
    alternatives.check(groups, per, where)
    policy = document.get('group_policy')
    rules = affinity_document.parse(document.get('affinity', ()), names, where)
    affinity_document.check(rules, _implied(groups, policy), where)
    return Profile(name, tuple(groups), document.get('description') or '',
                   policy, rules, {name: groups for name, groups
                                   in names.items() if isinstance(name, str)},
                   bool(document.get('guest_switches')),
                   bool(document.get('gpu_cliques')),
                   document.get('same_domain', ''),
                   HOST if per == HOST else '')


def _implied(groups: collections.abc.Iterable[Group], policy: str | None,
             ) -> affinity_document.Implied:
    named = {group_name(index): group for index, group in enumerate(groups)}
    found = dict.fromkeys(affinity.numa_rules(named), 'numa')
    if policy == ISOLATE:
        found.update(dict.fromkeys(affinity.isolation_rules(tuple(named)),
                                   'group_policy'))
    return found


def _add_name(names: dict[str | int, tuple[str, ...]], name: str | None,
              index: int, here: str) -> None:
    if name in (affinity.GUEST, affinity.NETWORK) or name and re.fullmatch(
            rf'{GROUP}\d+', name):
        raise errors.ProfileError(here, f'the name {name} is reserved',
                                  'choose another name')
    if name in names:
        raise errors.ProfileError(
            here, f'another group has the name {errors.quote(name)}')
    if name is not None:
        names[name] = names[index]


def is_cyborgs(group: collections.abc.Mapping[str, typing.Any]) -> bool:
    """Whether a group is in Cyborg's format."""
    return any(isinstance(key, str) and ':' in key for key in group)


def is_cyborg_document(groups: object) -> bool:
    """Whether groups, possibly unchecked, are in Cyborg's format."""
    return isinstance(groups, list) and any(
        isinstance(group, dict) and is_cyborgs(group) for group in groups)


def _canonical(key: str) -> str:
    prefix, _colon, rest = key.partition(':')
    return f'{prefix}:{rest.strip()}' if rest else key


def _by_prefix(written: collections.abc.Mapping[str, typing.Any], here: str,
               ) -> dict[str, dict[str, typing.Any]]:
    """Split the keys of a Cyborg group: values by prefix and name."""
    keys = [_canonical(key) for key in written]
    if len(set(keys)) < len(keys):
        raise errors.ProfileError(here, 'has a key twice')
    found: dict[str, dict[str, typing.Any]] = collections.defaultdict(dict)
    for key, value in zip(keys, written.values(), strict=True):
        prefix, name = key.split(':', 1)
        found[prefix][name] = value
    return found


def _group(written: collections.abc.Mapping[str, typing.Any], cyborgs: bool,
           here: str) -> Group:
    any_of: collections.abc.Sequence[collections.abc.Sequence[str]] = ()
    if cyborgs:
        parts = _by_prefix(written, here)
        asked, traits, numa = parts['resources'], parts['trait'], PREFERRED
        bitstream, function = (parts['accel'].get(key)
                               for key in (_BITSTREAM, _FUNCTION))
    else:
        asked, traits = written['resources'], written.get('traits', {})
        # The schema allows false, which is how YAML reads a bare off.
        numa = written.get('numa', PREFERRED) or OFF
        bitstream, function = written.get('bitstream'), written.get('function')
        any_of = written.get('any_of', ())
    resources = {name: int(amount) for name, amount in asked.items()}
    _check_resources(resources, here)
    _check_traits({**dict.fromkeys(itertools.chain(*any_of), REQUIRED),
                   **traits}, here)
    if bitstream and function:
        raise errors.ProfileError(
            here, 'asks for a bitstream to program and for a function that '
            'is programmed already', 'leave one of them out')
    if function:
        traits = _with_function(traits, _id(function, 'function', here), here)
    return Group(dict(sorted(resources.items())),
                 dict(sorted(traits.items())), numa,
                 str(uuid.UUID(_id(bitstream, 'bitstream', here)))
                 if bitstream else '',
                 alternatives.parse(any_of, traits, here))


def _id(value: object, key: str, here: str) -> str:
    try:
        return fpga.read_id(str(value).strip())
    except ValueError as error:
        raise errors.ProfileError(
            here, f'{key} {error}', 'name a Glance image by its uuid'
            if key == 'bitstream' else '') from None


def _with_function(traits: collections.abc.Mapping[str, str], function: str,
                   here: str) -> dict[str, str]:
    trait = fpga.function_trait(function)
    if traits.get(trait, REQUIRED) != REQUIRED:
        raise errors.ProfileError(
            here, f'asks for function {function}, and forbids its trait')
    return {**traits, trait: REQUIRED}


def _check_resources(resources: collections.abc.Mapping[str, int],
                     here: str) -> None:
    if not resources:
        raise errors.ProfileError(here, 'asks for no resource',
                                  'give it a resource class')
    for name, amount in resources.items():
        if amount > MAX_AMOUNT:
            raise errors.ProfileError(
                here, f'{errors.plain(name)}: {amount} is more than '
                f'{MAX_AMOUNT}')
        if name in naming.NOVAS_OWN_CLASSES:
            raise errors.ProfileError(
                here, f'resources {name} is a class that Nova itself counts',
                'set it on the flavor')
        if not naming.is_resource_class(name):
            raise errors.ProfileError(
                here, f'resources {errors.quote(name)} is neither a standard '
                'resource class nor CUSTOM_ and A-Z, 0-9, _',
                'PGPU, VGPU and FPGA are standard' if name == 'GPU' else
                f'{naming.MAX_CLASS} characters are the most'
                if len(name) > naming.MAX_CLASS else '')
    if len(resources) > 1:
        one, other = list(resources)[:2]
        raise errors.ProfileError(
            here, f'asks for {errors.plain(one)} and {errors.plain(other)} at '
            'once, and each class has a resource provider of its own',
            'write a group for each class, joined by affinity "same: device"')


def _check_traits(traits: collections.abc.Mapping[str, str],
                  here: str) -> None:
    for name, strength in traits.items():
        if name in naming.OUR_TRAITS and strength == FORBIDDEN:
            raise errors.ProfileError(
                here, f'forbids trait {name}, which every device has',
                'leave it out')
        if not naming.is_trait(name):
            raise errors.ProfileError(
                here, f'trait {errors.quote(name)} is neither a standard '
                'trait nor CUSTOM_ and A-Z, 0-9, _')
