# SPDX-License-Identifier: Apache-2.0
"""A Profile written into a flavor's extra specs, and read back from them.

nova-api expands once; scheduler and compute read. The keys are Nova's own
granular syntax, and ``nova_accel:*`` for what Placement cannot say. That
makes the flavor that a server keeps the only message between the three.
"""

import collections.abc
import itertools
import re

from nova_accel.core import errors
from nova_accel.core import naming
from nova_accel.core.request import affinity
from nova_accel.core.request import affinity_document
from nova_accel.core.request import device_profile

#: The key that operators write.
PROFILE_KEY = 'accel:device_profile'
#: The key that keeps, for people, which profile it was.
EXPANDED_KEY = 'nova_accel:profile'
#: Per group: ``nova_accel:numa_ACCEL0``.
NUMA_KEY = 'nova_accel:numa_'
#: Per group: ``nova_accel:bitstream_ACCEL0``, uuid of a Glance image.
BITSTREAM_KEY = 'nova_accel:bitstream_'
#: Per group: ``nova_accel:count_ACCEL0=8`` makes it ACCEL0 to ACCEL7, whose
#: amounts are one request to Placement.
COUNT_KEY = 'nova_accel:count_'
#: Per group and trait: ``nova_accel:forbidden_ACCEL0:CUSTOM_X``. Placement
#: is not told: on the provider of a class are the traits of all its devices,
#: and one that has it does not spoil the others.
FORBIDDEN_KEY = 'nova_accel:forbidden_'

#: instance_extra.flavor is a TEXT of 64 KB that holds three flavors during a
#: resize; this leaves them room. Bytes, keys and values together.
MAX_BYTES = 15 * 1024
#: Nova's own limit for a key and for a value, in characters.
MAX_LENGTH = 255

# Of a count that no profile wrote, this much is enough to be refused.
_MAX_COUNT = 1024
_PREFIX = 'nova_accel:'
# What only we write, and no operator.
_WRITTEN = (NUMA_KEY, BITSTREAM_KEY, COUNT_KEY, FORBIDDEN_KEY, affinity.PREFIX)
_KEY = re.compile(r'(resources|trait)([a-zA-Z0-9_-]{1,64})?:(.*)')
_OURS = re.compile(rf'_({device_profile.GROUP}\d+)')


def expand(profile: device_profile.Profile,
           extra_specs: collections.abc.Mapping[str, str]) -> dict[str, str]:
    """The extra specs of a flavor with its profile put in place.

    Groups in a row that are alike become one request for all of their units,
    so that Placement has one way to serve it on each host, and not one for
    each order of its devices.

    :param extra_specs: the flavor's, :data:`PROFILE_KEY` among them
    :returns: a new mapping without :data:`PROFILE_KEY`
    :raises errors.ProfileError: if the two contradict each other, or the
        outcome is more than a flavor holds
    """
    thing = f'device profile {errors.quote(profile.name)}'
    own = {key: value for key, value in extra_specs.items()
           if key != PROFILE_KEY}
    added = {}
    for index, group, count in _rows(profile.groups):
        added.update(_group_keys(device_profile.group_name(index), group,
                                 count))
    added.update(affinity.dumps(_rules(thing, profile, own)))
    _check_conflicts(thing, profile, own, added)
    specs = {**own, **added, EXPANDED_KEY: profile.name}
    if not _is_for_placement(thing, own, added):
        specs.pop('group_policy', None)
    _check_size(thing, specs)
    return specs


class Groups(dict[str, device_profile.Group]):
    """The groups of a flavor's profile, by name.

    :ivar own: the granular groups that the operator wrote beside it, with
        their traits
    :ivar traits: ``required`` or ``forbidden`` by trait, of what is asked for
        without a suffix. To Placement, what serves it has them together: the
        compute node may have one, and devices of some class another.
    """

    def __init__(self, groups: collections.abc.Mapping[str,
                                                       device_profile.Group],
                 own: tuple[device_profile.Group, ...] = (),
                 traits: collections.abc.Mapping[str, str] = {}):
        super().__init__(groups)
        self.own = own
        self.traits = traits


def read(extra_specs: collections.abc.Mapping[str, str],
         image_traits: collections.abc.Iterable[str] = ()) -> Groups:
    """The groups of an expanded flavor, by name (``ACCEL0``), in order.

    :param image_traits: that the server's image requires, which Nova adds to
        what is asked for without a suffix
    """
    found = _parts(extra_specs)
    beside = found.pop('', {'traits': {}})['traits']
    ours = {match[1]: found.pop(suffix) for suffix in list(found)
            if (match := _OURS.fullmatch(suffix))}
    groups = {}
    for name in sorted(ours, key=_index):
        count = _count(extra_specs, name)
        group = _group(extra_specs, name, ours[name], count)
        groups.update(dict.fromkeys(_names(name, count), group))
    return Groups(groups, tuple(
        device_profile.Group(found[suffix]['resources'],
                             _wished(found[suffix]['traits']),
                             device_profile.OFF)
        for suffix in sorted(found)), {
            **_wished(beside),
            **dict.fromkeys(image_traits, device_profile.REQUIRED)})


def image_traits(image) -> list[str]:
    """The traits that a server's image requires, as :func:`read` wants them.

    :param image: nova.objects.ImageMeta, or None for a server without
    """
    return image.properties.get('traits_required', []) if image else []


def rules(extra_specs: collections.abc.Mapping[str, str],
          ) -> tuple[affinity.Rule, ...]:
    """What an expanded flavor says of where its devices are to be.

    :raises errors.ProfileError: if a later version wrote it, which wanted
        more than is understood here
    """
    written = affinity.loads(extra_specs)
    return written + affinity.numa_rules(read(extra_specs), written)


def requests(extra_specs: collections.abc.Mapping[str, str],
             ) -> dict[str, str]:
    """By group, the suffix of the request to Placement that it is part of."""
    return {name: f'_{base}' for base in _bases(extra_specs)
            for name in _names(base, _count(extra_specs, base))}


def classes(extra_specs: collections.abc.Mapping[str, str]) -> set[str]:
    """The resource classes that a device may have and the flavor asks for."""
    return {match[3] for key in extra_specs
            if (match := _KEY.fullmatch(key)) and match[1] == 'resources'
            } - naming.NOVAS_OWN_CLASSES


def _parts(extra_specs) -> dict[str, dict]:
    """Amounts and traits, by suffix; '' where there is none."""
    found: dict[str, dict] = {}
    for key, value in extra_specs.items():
        match = _KEY.fullmatch(key)
        if not match:
            continue
        parts = found.setdefault(match[2] or '',
                                 {'resources': {}, 'traits': {}})
        if match[1] == 'trait':
            parts['traits'][match[3]] = value
        elif value.isdecimal():
            parts['resources'][match[3]] = int(value)
    return found


def _wished(traits) -> dict[str, str]:
    """Without what is neither, which Nova leaves out with a warning."""
    return {trait: strength for trait, strength in traits.items()
            if strength in (device_profile.REQUIRED, device_profile.FORBIDDEN)}


def _rows(groups: collections.abc.Iterable[device_profile.Group],
          ) -> collections.abc.Iterator[tuple[int, device_profile.Group, int]]:
    """Groups in a row that are alike: first index, group, and how many."""
    index = 0
    for group, alike in itertools.groupby(groups):
        count = len(list(alike))
        yield index, group, count
        index += count


def _group_keys(name: str, group: device_profile.Group,
                count: int) -> dict[str, str]:
    keys = {f'resources_{name}:{resource_class}': str(amount * count)
            for resource_class, amount in group.resources.items()}
    keys[f'trait_{name}:{naming.MARKER_TRAIT}'] = device_profile.REQUIRED
    for trait, strength in group.traits.items():
        if strength == device_profile.REQUIRED:
            keys[f'trait_{name}:{trait}'] = strength
        else:
            keys[f'{FORBIDDEN_KEY}{name}:{trait}'] = 'true'
    if count > 1:
        keys[COUNT_KEY + name] = str(count)
    if group.numa != device_profile.OFF:
        keys[NUMA_KEY + name] = group.numa
    if group.bitstream:
        keys[BITSTREAM_KEY + name] = group.bitstream
    return keys


def _group(specs, name, parts, count) -> device_profile.Group:
    prefix = f'{FORBIDDEN_KEY}{name}:'
    forbidden = {key.removeprefix(prefix): device_profile.FORBIDDEN
                 for key in specs if key.startswith(prefix)}
    return device_profile.Group(
        {resource_class: amount // count
         for resource_class, amount in parts['resources'].items()},
        {**parts['traits'], **forbidden},
        specs.get(NUMA_KEY + name, device_profile.OFF),
        specs.get(BITSTREAM_KEY + name, ''))


def _bases(specs) -> set[str]:
    """The groups that Placement is asked for."""
    return {ours[1] for key in specs if (match := _KEY.fullmatch(key))
            and match[2] and (ours := _OURS.fullmatch(match[2]))}


def _count(specs, name: str) -> int:
    text = specs.get(COUNT_KEY + name, '1')
    return min(max(int(text), 1), _MAX_COUNT) if text.isdecimal() else 1


def _names(base: str, count: int) -> list[str]:
    return [device_profile.group_name(_index(base) + number)
            for number in range(count)]


def _index(name: str) -> int:
    return int(name.removeprefix(device_profile.GROUP))


def _rules(thing, profile, own) -> tuple[affinity.Rule, ...]:
    names = tuple(device_profile.group_name(index)
                  for index in range(len(profile.groups)))
    policy = own.get('group_policy', profile.group_policy)
    if policy != device_profile.ISOLATE:
        return profile.rules
    # All devices of a class are one provider to Placement, which so cannot
    # tell whether groups are served by different ones.
    isolated = affinity.isolated(names)
    affinity_document.check(profile.rules,
                            dict.fromkeys(isolated, 'group_policy'), thing)
    return (*profile.rules, *isolated)


def _is_for_placement(thing, own, added) -> bool:
    """Whether the flavor's own policy is, and not for our rules alone.

    nova-scheduler tells Placement that there is none where there is none:
    to Nova, a key without a colon is also what aggregates are to have.
    """
    if own.get('group_policy') != device_profile.ISOLATE:
        return True
    asked = [match[3] for key in added if (match := _KEY.fullmatch(key))
             and match[1] == 'resources']
    twice = {name for name in asked if asked.count(name) > 1}
    if twice and _suffixes(own):
        raise errors.ProfileError(
            thing, f'has several groups of {min(twice)}, which are one '
            'provider to Placement, and the flavor, which has groups of its '
            'own, says group_policy=isolate', 'set the flavor\'s '
            'group_policy to none')
    # Where it can be kept, it is for the groups of ports and aliases, too.
    return not twice


def _check_conflicts(thing, profile, own, added) -> None:
    wanted = {name for group in profile.groups for name in group.resources}
    for key in own:
        match = _KEY.fullmatch(key)
        if match and match[1] == 'resources' and match[3] in wanted:
            raise errors.ProfileError(
                thing, f'the flavor itself also asks for {match[3]} ({key})',
                'leave it to one of the two')
        if (match and match[2] and _OURS.fullmatch(match[2])) or (
                key in added or key.startswith(_WRITTEN)):
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
