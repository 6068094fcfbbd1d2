# SPDX-License-Identifier: Apache-2.0
"""Resource classes that have become one class, with a trait for each of them.

The trait has the name of the old class. The extra specs of a flavor, and
a device profile, then ask for the new class and this trait. Old servers
keep the extra specs that they were created with, so each service changes them
where it reads them.
"""

import collections
import collections.abc
import typing

from nova_accel.core import errors
from nova_accel.core import naming
from nova_accel.core.request import device_profile
from nova_accel.core.request import flavor_specs

#: The option of nova.conf.
OPTION = '[nova_accel] moved_classes'

#: New classes by the old class.
Moves = collections.abc.Mapping[str, str]


def parse(option: collections.abc.Mapping[str, str],
          ) -> tuple[dict[str, str], list[errors.AccelError]]:
    """Return the moves of the option, and what is wrong with the others.

    :param option: new classes by the old class, as they are written
    """
    # In the order of the option, each pair once.
    written = list(dict.fromkeys(
        (naming.normalise_resource_class(old),
         naming.normalise_resource_class(new)) for old, new in option.items()))
    moves: dict[str, str] = {}
    problems = []
    for old, new in written:
        if why := _why_not(old, new, written):
            problems.append(errors.AccelError(
                f'{OPTION}, {errors.plain(old)}:{errors.plain(new)}', why,
                'correct it; old servers keep their class until then'))
        else:
            moves[old] = new
    return moves, problems


def _why_not(old: str, new: str,
             written: collections.abc.Collection[tuple[str, str]]) -> str:
    for name in (old, new):
        if not naming.is_resource_class(name):
            return f'{errors.quote(name)} is not a class that devices can have'
    if new in dict(written):
        return f'{new} is moved itself'
    if [name for name, _new in written].count(old) > 1:
        return f'{old} has several new classes'
    if alike := [name for name, _new in written
                 if name != old and trait(name) == trait(old)]:
        return f'{alike[0]} has the same trait, {trait(old)}'
    if naming.is_own_trait(trait(old)):
        return f'no entry can have the trait {trait(old)}'
    return ''


def trait(old: str) -> str:
    """Return the trait of the devices that had a class."""
    return naming.normalise_trait(old)


def is_moved(extra_specs: collections.abc.Mapping[str, str],
             moves: Moves) -> bool:
    """Whether extra specs ask for an old class."""
    return bool(moves) and not moves.keys().isdisjoint(
        flavor_specs.classes(extra_specs))


def rewrite(extra_specs: collections.abc.Mapping[str, str],
            moves: Moves) -> dict[str, str]:
    """Return extra specs that ask for the new classes.

    :param extra_specs: of a flavor; or a group of a profile of Cyborg
    :raises errors.ProfileError: if they cannot ask for the same
    """
    specs = dict(extra_specs)
    for key in extra_specs:
        kind, suffix, name = flavor_specs.parse_key(key)
        if kind == 'resources' and name in moves:
            del specs[key]
            # An expanded profile has the traits that it forbids there.
            forbidden = (f'{flavor_specs.FORBIDDEN_KEY}{suffix[1:]}:'
                         f'{trait(name)}')
            for added, value, others in (
                    (f'resources{suffix}:{moves[name]}', extra_specs[key], ()),
                    (f'trait{suffix}:{trait(name)}', device_profile.REQUIRED,
                     [forbidden])):
                _add(specs, added, value, key, others)
            _check_alone(extra_specs, suffix, name, moves)
    if specs != extra_specs:
        _drop_isolation(specs)
    return specs


def document(loaded: typing.Any, moves: Moves) -> typing.Any:
    """Return the documents of a file of profiles with the new classes.

    :param loaded: what the file contains, at any level
    :raises errors.ProfileError: as :func:`rewrite`
    """
    if isinstance(loaded, list):
        return [document(item, moves) for item in loaded]
    if not isinstance(loaded, dict):
        return loaded
    found = rewrite(loaded, moves) if device_profile.is_cyborgs(
        loaded) else loaded
    resources = found.get('resources')
    if isinstance(resources, dict) and not moves.keys().isdisjoint(resources):
        return _group(found, resources, moves)
    return {key: document(value, moves) for key, value in found.items()}


def _group(group: collections.abc.Mapping[str, typing.Any],
           resources: collections.abc.Mapping[str, typing.Any], moves: Moves,
           ) -> dict[str, typing.Any]:
    """Return a group in our format with the new classes."""
    flat = rewrite({
        **{f'resources:{name}': amount for name, amount in resources.items()},
        **{f'trait:{name}': strength
           for name, strength in (group.get('traits') or {}).items()}}, moves)
    found: dict[str, dict[str, typing.Any]] = {'resources': {}, 'traits': {}}
    for key, value in flat.items():
        kind, _suffix, name = flavor_specs.parse_key(key)
        found['traits' if kind == 'trait' else kind][name] = value
    return {**group, **found}


def _add(specs: dict[str, str], key: str, value: str, instead_of: str,
         others: collections.abc.Iterable[str]) -> None:
    """Add a key to extra specs.

    :param others: keys that contradict it
    :raises errors.ProfileError: if one of them is there, or another value
    """
    # A change of a flavor that was interrupted has left the same.
    specs.setdefault(key, value)
    for found in (key, *others):
        if found in specs and (found, specs[found]) != (key, value):
            raise errors.ProfileError(
                errors.quote(instead_of), f'would become {key}={value}, and '
                f'there is {found}={errors.plain(str(specs[found]))}',
                'write a profile for both')


def _drop_isolation(specs: dict[str, str]) -> None:
    """Drop the ``group_policy`` that Placement could not fulfil any more.

    All devices of the new class may be one provider. The rules of an expanded
    profile isolate its groups without it.

    :raises errors.ProfileError: if the flavor has such groups itself
    """
    if specs.get('group_policy') != device_profile.ISOLATE:
        return
    suffixes = collections.defaultdict(set)
    for key in specs:
        kind, suffix, name = flavor_specs.parse_key(key)
        if kind == 'resources' and suffix:
            suffixes[name].add(suffix)
    repeated = {name: found for name, found in suffixes.items()
                if len(found) > 1}
    if not repeated:
        return
    if own := sorted(suffix for found in suffixes.values() for suffix in found
                     if not suffix.startswith(f'_{device_profile.GROUP}')):
        raise errors.ProfileError(
            f'resources{own[0]}', f'several groups would ask for '
            f'{min(repeated)}, which may be one provider in Placement, with '
            f'group_policy={device_profile.ISOLATE}',
            'write a profile with this group_policy for them')
    del specs['group_policy']


def _check_alone(specs: collections.abc.Mapping[str, str], suffix: str,
                 name: str, moves: Moves) -> None:
    """Check that a group asks for one old class, as traits are for all.

    :raises errors.ProfileError: if it does not
    """
    others = [key for key in specs
              if flavor_specs.parse_key(key)[:2] == ('resources', suffix)
              and moves.get(flavor_specs.parse_key(key)[2]) == moves[name]]
    if len(others) > 1:
        raise errors.ProfileError(
            ' and '.join(sorted(others)), f'would become one request for '
            f'{moves[name]}, whose devices had all traits',
            'write a profile with a group for each')
