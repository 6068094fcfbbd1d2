# SPDX-License-Identifier: Apache-2.0
"""A Profile written into a flavor's extra specs, and read back from them.

nova-api expands once; scheduler and compute read. The keys are Nova's own
granular syntax, and ``nova_accel:*`` for what Placement cannot say. That
makes the flavor that a server keeps the only message between the three.
"""

import collections.abc
import re

from nova_accel.core import errors
from nova_accel.core import identity
from nova_accel.core import profile as profiles

#: The key that operators write.
PROFILE_KEY = 'accel:device_profile'
#: The key that keeps, for people, which profile it was.
EXPANDED_KEY = 'nova_accel:profile'
#: Per group: ``nova_accel:numa_ACCEL0``.
NUMA_KEY = 'nova_accel:numa_'
#: Per group: ``nova_accel:bitstream_ACCEL0``, uuid of a Glance image.
BITSTREAM_KEY = 'nova_accel:bitstream_'

#: instance_extra.flavor is a TEXT of 64 KB that holds three flavors during a
#: resize; this leaves them room. Bytes, keys and values together.
MAX_BYTES = 15 * 1024
#: Nova's own limit for a key and for a value, in characters.
MAX_LENGTH = 255

_GROUP = 'ACCEL'
_KEY = re.compile(r'(resources|trait)([a-zA-Z0-9_-]{1,64})?:(.*)')
_OURS = re.compile(rf'_({_GROUP}\d+)')


def expand(profile: profiles.Profile,
           extra_specs: collections.abc.Mapping[str, str]) -> dict[str, str]:
    """The extra specs of a flavor with its profile put in place.

    :param extra_specs: the flavor's, :data:`PROFILE_KEY` among them
    :returns: a new mapping without :data:`PROFILE_KEY`
    :raises errors.ProfileError: if the two contradict each other, or the
        outcome is more than a flavor holds
    """
    thing = f'device profile {errors.quote(profile.name)}'
    own = {key: value for key, value in extra_specs.items()
           if key != PROFILE_KEY}
    _check_conflicts(thing, profile, own)
    added = {}
    for index, group in enumerate(profile.groups):
        added.update(_group_keys(f'{_GROUP}{index}', group))
    specs = {**own, **added, EXPANDED_KEY: profile.name}
    if len(_suffixes(specs)) > 1:
        # Placement answers 400 where several groups come without a policy.
        specs.setdefault('group_policy', profile.group_policy or 'none')
    _check_size(thing, specs)
    return specs


def read(extra_specs: collections.abc.Mapping[str, str],
         ) -> dict[str, profiles.Group]:
    """The groups of an expanded flavor, by name (``ACCEL0``), in order."""
    found: dict[str, dict] = {}
    for key, value in extra_specs.items():
        match = _KEY.fullmatch(key)
        ours = match and match[2] and _OURS.fullmatch(match[2])
        if not ours:
            continue
        parts = found.setdefault(ours[1], {'resources': {}, 'traits': {}})
        if match[1] == 'trait':
            parts['traits'][match[3]] = value
        elif value.isdecimal():
            parts['resources'][match[3]] = int(value)
    return {name: profiles.Group(
        numa=extra_specs.get(NUMA_KEY + name, profiles.OFF),
        bitstream=extra_specs.get(BITSTREAM_KEY + name, ''), **found[name])
        for name in sorted(found, key=lambda name: int(name[len(_GROUP):]))}


def wishes(extra_specs: collections.abc.Mapping[str, str],
           group: str) -> dict[str, str]:
    """What a group says beside classes and traits, by key: for its kind."""
    prefix, suffix = 'nova_accel:', f'_{group}'
    return {key.removeprefix(prefix).removesuffix(suffix): value
            for key, value in extra_specs.items()
            if group and key.startswith(prefix) and key.endswith(suffix)}


def classes(extra_specs: collections.abc.Mapping[str, str]) -> set[str]:
    """The resource classes that a device may have and the flavor asks for."""
    return {match[3] for key in extra_specs
            if (match := _KEY.fullmatch(key)) and match[1] == 'resources'
            } - identity.NOVAS_OWN_CLASSES


def _group_keys(name: str, group: profiles.Group) -> dict[str, str]:
    keys = {f'resources_{name}:{resource_class}': str(amount)
            for resource_class, amount in group.resources.items()}
    traits = {**group.traits, identity.MARKER_TRAIT: profiles.REQUIRED}
    keys.update({f'trait_{name}:{trait}': wish
                 for trait, wish in traits.items()})
    if group.numa != profiles.OFF:
        keys[NUMA_KEY + name] = group.numa
    if group.bitstream:
        keys[BITSTREAM_KEY + name] = group.bitstream
    return keys


def _check_conflicts(thing, profile, own) -> None:
    wanted = {name for group in profile.groups for name in group.resources}
    for key in own:
        match = _KEY.fullmatch(key)
        if match and match[1] == 'resources' and match[3] in wanted:
            raise errors.ProfileError(
                thing, f'the flavor itself also asks for {match[3]} ({key})',
                'leave it to one of the two')
        if (match and match[2] and _OURS.fullmatch(match[2])) or (
                key.startswith((NUMA_KEY, BITSTREAM_KEY))):
            raise errors.ProfileError(
                thing, f'the flavor itself has {key}, which the profile '
                'would write', 'take it off the flavor')


def _suffixes(specs) -> set[str]:
    return {match[2] for key in specs
            if (match := _KEY.fullmatch(key)) and match[2]}


def _check_size(thing, specs) -> None:
    for key, value in specs.items():
        if max(len(key), len(value)) > MAX_LENGTH:
            raise errors.ProfileError(
                thing, f'{errors.quote(key)} is longer than the {MAX_LENGTH} '
                'characters that a flavor holds')
    size = sum(len(f'{key}{value}'.encode()) for key, value in specs.items())
    if size > MAX_BYTES:
        raise errors.ProfileError(
            thing, f'comes to {size} bytes of extra specs; a flavor holds '
            f'{MAX_BYTES}', 'ask for fewer groups or traits')
