# SPDX-License-Identifier: Apache-2.0
"""A Profile: what a server asks for, group by group.

Two ways of writing a group mean the same here: ours, and the one that
Cyborg's API takes and gives (``resources:FPGA``, ``trait:CUSTOM_X``,
``accel:bitstream_id``). :func:`parse` expects a document whose shape has
been checked (:mod:`nova_accel.profiles.schema`) and checks what it means.
"""

import collections
import collections.abc
import dataclasses
import typing
import uuid

from nova_accel.core import errors
from nova_accel.core import naming
from nova_accel.core.request import affinity
from nova_accel.core.request import affinity_document
from nova_accel.core.request import fpga

REQUIRED, PREFERRED, OFF = (affinity.REQUIRED, affinity.PREFERRED,
                            affinity.OFF)
FORBIDDEN = 'forbidden'

#: The group_policy by which each group is on another device.
ISOLATE = 'isolate'

#: What a group is called in a flavor, with its number.
GROUP = 'ACCEL'

#: Most units of a class in one group.
MAX_AMOUNT = 1024
#: Most groups that a profile may come to after ``count``.
MAX_GROUPS = 256

# Of Cyborg's ``accel:`` keys only these two ever did anything.
_BITSTREAM, _FUNCTION = 'bitstream_id', 'function_id'


@dataclasses.dataclass(frozen=True)
class Group:
    """What is taken from one provider.

    :param resources: amount by resource class; a document's has one class
    :param traits: ``required`` or ``forbidden`` by trait
    :param numa: whether this group's devices are to share one NUMA node with
        those of the profile's other groups, and with the guest where that has
        a NUMA topology: ``required``, ``preferred`` or ``off``
    :param bitstream: uuid of the Glance image that is to be programmed into
        what is taken, or ''
    """

    resources: collections.abc.Mapping[str, int]
    traits: collections.abc.Mapping[str, str]
    numa: str = PREFERRED
    bitstream: str = ''


@dataclasses.dataclass(frozen=True)
class Profile:
    """A named request.

    :param groups: in order; a group's index is its name, ``ACCEL0``
    :param group_policy: ``isolate``: each group on another device; ``none``,
        or None
    :param rules: where groups of these names are to be
    """

    name: str
    groups: tuple[Group, ...]
    description: str = ''
    group_policy: str | None = None
    rules: tuple[affinity.Rule, ...] = ()


def group_name(index: int) -> str:
    """What a flavor calls a Profile's group."""
    return f'{GROUP}{index}'


def parse(document: collections.abc.Mapping[str, typing.Any],
          source: str) -> Profile:
    """A checked document as a Profile.

    :param source: the file, for messages
    :raises errors.ProfileError: naming file, profile, group and key
    """
    name = document['name']
    where = f'profile {errors.quote(name)} in {source}'
    # A group without a key is written as the others are.
    cyborgs = are_cyborgs(document['groups'])
    groups: list[Group] = []
    names: dict[str | int, tuple[str, ...]] = {}
    for index, written in enumerate(document['groups']):
        here = f'{where}, group {index}'
        # To JSON Schema, 2.0 is an integer too.
        count = int(written.get('count', 1))
        if len(groups) + count > MAX_GROUPS:
            raise errors.ProfileError(
                here, f'the profile asks for more than {MAX_GROUPS} groups')
        names[index] = tuple(group_name(len(groups) + number)
                             for number in range(count))
        _add_name(names, written.get('name'), index, here)
        groups.extend([_group(written, cyborgs, here)] * count)
    policy = document.get('group_policy')
    rules = affinity_document.parse(document.get('affinity', ()), names, where)
    affinity_document.check(rules, _implied(groups, policy), where)
    return Profile(name, tuple(groups), document.get('description') or '',
                   policy, rules)


def _implied(groups, policy) -> dict[affinity.Rule, str]:
    """The rules that other keys come to, with the key."""
    named = {group_name(index): group for index, group in enumerate(groups)}
    found = dict.fromkeys(affinity.numa_rules(named), 'numa')
    if policy == ISOLATE:
        found.update(dict.fromkeys(affinity.isolated(tuple(named)),
                                   'group_policy'))
    return found


def _add_name(names, name, index, here) -> None:
    if name in (affinity.GUEST, affinity.NETWORK):
        raise errors.ProfileError(
            here, f'{name} means something else in affinity',
            'call it something else')
    if name in names:
        raise errors.ProfileError(
            here, f'another group is called {errors.quote(name)} too')
    if name is not None:
        names[name] = names[index]


def is_cyborgs(group: collections.abc.Mapping[str, typing.Any]) -> bool:
    """Whether a group is written as Cyborg writes it."""
    return any(isinstance(key, str) and ':' in key for key in group)


def are_cyborgs(groups: object) -> bool:
    """Whether a document's groups, checked or not yet, are Cyborg's."""
    return isinstance(groups, list) and any(
        isinstance(group, dict) and is_cyborgs(group) for group in groups)


def _canonical(key: str) -> str:
    prefix, _colon, rest = key.partition(':')
    return f'{prefix}:{rest.strip()}' if rest else key


def _by_prefix(written, here: str) -> dict[str, dict[str, str]]:
    """A group of Cyborg's: what its keys name, by what is before the colon."""
    keys = [_canonical(key) for key in written]
    if len(set(keys)) < len(keys):
        raise errors.ProfileError(here, 'a key is there twice')
    found = collections.defaultdict(dict)
    for key, value in zip(keys, written.values(), strict=True):
        prefix, name = key.split(':', 1)
        found[prefix][name] = value
    return found


def _group(written, cyborgs: bool, here: str) -> Group:
    if cyborgs:
        parts = _by_prefix(written, here)
        resources, traits, numa = parts['resources'], parts['trait'], PREFERRED
        bitstream, function = (parts['accel'].get(key)
                               for key in (_BITSTREAM, _FUNCTION))
    else:
        resources, traits = written['resources'], written.get('traits', {})
        # The schema lets false through, which is YAML's bare off.
        numa = written.get('numa', PREFERRED) or OFF
        bitstream, function = written.get('bitstream'), written.get('function')
    resources = {name: int(amount) for name, amount in resources.items()}
    _check_resources(resources, here)
    _check_traits(traits, here)
    if bitstream and function:
        raise errors.ProfileError(
            here, 'asks for a bitstream and for a function that is there '
            'already', 'leave one of them out')
    if function:
        traits = _with_function(traits, _id(function, 'function', here), here)
    return Group(dict(sorted(resources.items())),
                 dict(sorted(traits.items())), numa,
                 str(uuid.UUID(_id(bitstream, 'bitstream', here)))
                 if bitstream else '')


def _id(value, key: str, here: str) -> str:
    try:
        return fpga.read_id(str(value).strip())
    except ValueError as error:
        raise errors.ProfileError(
            here, f'{key} {error}', 'name a Glance image by its uuid'
            if key == 'bitstream' else '') from None


def _with_function(traits, function: str, here: str) -> dict[str, str]:
    trait = fpga.function_trait(function)
    if traits.get(trait, REQUIRED) != REQUIRED:
        raise errors.ProfileError(
            here, f'asks for function {function}, and forbids its trait')
    return {**traits, trait: REQUIRED}


def _check_resources(resources, here: str) -> None:
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
                here, f'resources {name} is what Nova itself counts',
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


def _check_traits(traits, here: str) -> None:
    for name, strength in traits.items():
        if name in naming.OUR_TRAITS and strength == FORBIDDEN:
            raise errors.ProfileError(
                here, f'forbids trait {name}, which every device has',
                'leave it out')
        if not naming.is_trait(name):
            raise errors.ProfileError(
                here, f'trait {errors.quote(name)} is neither a standard '
                'trait nor CUSTOM_ and A-Z, 0-9, _')
