# SPDX-License-Identifier: Apache-2.0
"""Write a Profile into a flavor's extra specs, and read it back.

nova-api writes the specs once; nova-scheduler and nova-compute read them. The
keys are Nova's granular syntax, and ``nova_accel:*`` for what that cannot
express. A server keeps its flavor, which therefore is the only message between
the three services.
"""

import collections
import collections.abc
import dataclasses
import itertools
import re
import typing

from nova_accel.core import errors
from nova_accel.core import naming
from nova_accel.core.request import affinity
from nova_accel.core.request import affinity_document
from nova_accel.core.request import alternatives
from nova_accel.core.request import device_profile

#: The extra specs of a flavor.
ExtraSpecs = collections.abc.Mapping[str, str]

#: The key that operators write.
PROFILE_KEY = 'accel:device_profile'
#: The key of a flavor that asks for devices of ``[pci] alias``.
ALIAS_KEY = 'pci_passthrough:alias'
#: The key with the profile's name, for messages.
EXPANDED_KEY = 'nova_accel:profile'
#: ``true`` if the guest is told which of its GPUs are behind one switch.
CLIQUES_KEY = 'nova_accel:gpu_cliques'
#: ``required`` or ``preferred``: whether the servers of a server group, or of
#: one request, are to be in one host domain. Operators may write it.
SAME_DOMAIN_KEY = 'nova_accel:same_domain'
#: Per group: ``nova_accel:numa_ACCEL0``.
NUMA_KEY = 'nova_accel:numa_'
#: Per group: ``nova_accel:bitstream_ACCEL0``, uuid of a Glance image.
BITSTREAM_KEY = 'nova_accel:bitstream_'
#: Per group: ``nova_accel:count_ACCEL0=8`` stands for ACCEL0 to ACCEL7, whose
#: amounts are one request to Placement.
COUNT_KEY = 'nova_accel:count_'
#: Per name that the profile gives to groups: ``nova_accel:name_ACCEL0-3=gpu``
#: stands for ACCEL0 to ACCEL3.
NAME_KEY = 'nova_accel:name_'
#: ``true`` if the profile asks for PCIe switches in the guest.
SWITCHES_KEY = 'nova_accel:guest_switches'
#: Per group and trait: ``nova_accel:forbidden_ACCEL0:CUSTOM_X``. Not sent to
#: Placement: the provider of a resource class has the traits of all its
#: devices, and some of them may lack the forbidden trait.
FORBIDDEN_KEY = 'nova_accel:forbidden_'
#: Per group and alternative: ``nova_accel:any_ACCEL0-1=CUSTOM_X,CUSTOM_Y`` are
#: the traits of the second one of ACCEL0.
ANY_KEY = 'nova_accel:any_'
#: ``host`` if a server gets the first alternative that fits on its host.
PER_KEY = 'nova_accel:any_per'

#: The limit of all keys and values, in bytes. instance_extra.flavor is a TEXT
#: of 64 KB, and holds three flavors during a resize.
MAX_BYTES = 15 * 1024
#: Nova's limit of a key and of a value, in characters.
MAX_LENGTH = 255

# The limit of a count that an operator may have written. No host serves more.
_MAX_COUNT = 1024
# Prefixes of keys that operators must not write.
_WRITTEN = (NUMA_KEY, BITSTREAM_KEY, COUNT_KEY, NAME_KEY, SWITCHES_KEY,
            CLIQUES_KEY, FORBIDDEN_KEY, ANY_KEY, affinity.PREFIX)
_KEY = re.compile(r'(resources|trait)([a-zA-Z0-9_-]{1,64})?:(.*)')
_NAMED = re.compile(
    rf'{NAME_KEY}{device_profile.GROUP}(\d{{1,4}})-(\d{{1,4}})')
_OURS = re.compile(rf'_({device_profile.GROUP}\d+)')


def expand(profile: device_profile.Profile,
           extra_specs: ExtraSpecs) -> dict[str, str]:
    """Return the extra specs of a flavor with its profile expanded.

    Consecutive equal groups become one request for all their units. So
    Placement finds one allocation candidate on each host, and not one for
    each order of its devices.

    :param extra_specs: of the flavor, with :data:`PROFILE_KEY`
    :returns: a new mapping without :data:`PROFILE_KEY`
    :raises errors.ProfileError: if profile and flavor contradict each other,
        or the result is larger than a flavor can hold
    """
    thing = f'device profile {errors.quote(profile.name)}'
    own = {key: value for key, value in extra_specs.items()
           if key != PROFILE_KEY}
    added = {}
    for index, group, count in _runs(profile.groups):
        added.update(_group_keys(device_profile.group_name(index), group,
                                 count))
    added.update(affinity.dumps(_rules(thing, profile, own)))
    if profile.guest_switches:
        _check_switches(thing, profile)
        added[SWITCHES_KEY] = 'true'
    for name, groups in profile.names.items():
        added[f'{NAME_KEY}{groups[0]}-{_index(groups[-1])}'] = name
    if profile.gpu_cliques:
        added[CLIQUES_KEY] = 'true'
    if profile.same_domain:
        added[SAME_DOMAIN_KEY] = profile.same_domain
    if profile.per:
        added[PER_KEY] = profile.per
    _check_conflicts(thing, profile, own, added)
    specs = {**own, **added, EXPANDED_KEY: profile.name}
    if not _is_for_placement(thing, own, added):
        specs.pop('group_policy', None)
    _check_size(thing, specs)
    return specs


class Groups(dict[str, device_profile.Group]):
    """The groups of a flavor's profile, by name.

    :ivar own: the granular groups that the flavor asks for itself
    :ivar traits: ``required`` or ``forbidden`` by trait, of the unsuffixed
        request. Placement accepts a required trait on any provider that
        serves that request: the compute node or that of some devices.
    """

    def __init__(self, groups: collections.abc.Mapping[str,
                                                       device_profile.Group],
                 own: tuple[device_profile.Group, ...] = (),
                 traits: collections.abc.Mapping[str, str] = {}):
        super().__init__(groups)
        self.own = own
        self.traits = traits


def read(extra_specs: ExtraSpecs,
         image_traits: collections.abc.Iterable[str] = ()) -> Groups:
    """Return the groups of an expanded flavor, by name (``ACCEL0``), sorted.

    :param image_traits: the traits that the server's image requires, which
        Nova adds to the unsuffixed request
    """
    found = _parts(extra_specs)
    unsuffixed = found.pop('', _Parts()).traits
    ours = {match[1]: found.pop(suffix) for suffix in list(found)
            if (match := _OURS.fullmatch(suffix))}
    groups = {}
    for name in sorted(ours, key=_index):
        count = _count(extra_specs, name)
        group = _group(extra_specs, name, ours[name], count)
        groups.update(dict.fromkeys(_names(name, count), group))
    return Groups(groups, tuple(
        device_profile.Group(found[suffix].resources,
                             _valid(found[suffix].traits),
                             device_profile.OFF)
        for suffix in sorted(found)), {
            **_valid(unsuffixed),
            **dict.fromkeys(image_traits, device_profile.REQUIRED)})


def names(extra_specs: ExtraSpecs) -> dict[str, str]:
    """Return the names that the profile gives to groups, by ``ACCEL0``."""
    found = {}
    for key, name in extra_specs.items():
        if match := _NAMED.fullmatch(key):
            first, last = int(match[1]), min(int(match[2]), _MAX_COUNT)
            found.update({device_profile.group_name(index): name
                          for index in range(first, last + 1)})
    return found


def has_alternatives(extra_specs: ExtraSpecs) -> bool:
    """Whether any group of an expanded flavor has alternatives."""
    return any(key.startswith(ANY_KEY) for key in extra_specs)


def pinned(extra_specs: ExtraSpecs,
           alternative: int) -> dict[str, str]:
    """Return the extra specs with one of the alternatives only.

    :param alternative: the number of the combination
    """
    groups = read(extra_specs)
    chosen = list(alternatives.combinations(groups))[alternative]
    found = {key: value for key, value in extra_specs.items()
             if not key.startswith(ANY_KEY)}
    for name, group in groups.items():
        # Of equal groups, the first one stands for all.
        if f'{ANY_KEY}{name}-0' in extra_specs:
            found.update({f'trait_{name}:{trait}': strength for trait, strength
                          in chosen[name].traits.items()
                          if trait not in group.traits})
    return found


def image_traits(image: typing.Any) -> list[str]:
    """Return the traits that a server's image requires, for :func:`read`.

    :param image: nova.objects.ImageMeta, or None if the server has no image
    """
    found: list[str] = (image.properties.get('traits_required', [])
                        if image else [])
    return found


def rules(extra_specs: ExtraSpecs,
          ) -> tuple[affinity.Rule, ...]:
    """Return the affinity rules of an expanded flavor.

    :raises errors.ProfileError: if a rule cannot be understood, for example
        one that a later version wrote
    """
    written = affinity.loads(extra_specs)
    return written + affinity.numa_rules(read(extra_specs), written)


def same_domain(extra_specs: ExtraSpecs) -> str:
    """Return ``required``, ``preferred``, or '' if the flavor asks for none.

    :raises errors.ProfileError: for another value
    """
    value = extra_specs.get(SAME_DOMAIN_KEY, '')
    allowed = device_profile.REQUIRED, device_profile.PREFERRED
    if value not in ('', *allowed):
        raise errors.ProfileError(
            f'extra spec {SAME_DOMAIN_KEY}', f'is {errors.quote(value)}',
            f'set it to {" or ".join(allowed)}')
    return value


def classes(extra_specs: ExtraSpecs) -> set[str]:
    """Return the resource classes asked for that devices may have."""
    return {match[3] for key in extra_specs
            if (match := _KEY.fullmatch(key)) and match[1] == 'resources'
            } - naming.NOVAS_OWN_CLASSES


def parse_key(key: str) -> tuple[str, str, str]:
    """Return the parts of ``resources<suffix>:<class>`` or ``trait...``.

    :returns: ``resources`` or ``trait``, the suffix, and a class or a trait;
        '' three times for other keys
    """
    match = _KEY.fullmatch(key)
    return (match[1], match[2] or '', match[3]) if match else ('', '', '')


def amounts(extra_specs: ExtraSpecs,
            ) -> collections.Counter[str]:
    """Return how many units a flavor asks for, of each of :func:`classes`."""
    found: collections.Counter[str] = collections.Counter()
    for parts in _parts(extra_specs).values():
        found.update(parts.resources)
    return collections.Counter({name: found[name]
                                for name in classes(extra_specs)
                                if found[name]})


@dataclasses.dataclass(frozen=True)
class _Parts:
    """The amounts by resource class of a group of a flavor, and its traits.

    The values of the traits are not checked.
    """

    resources: dict[str, int] = dataclasses.field(default_factory=dict)
    traits: dict[str, str] = dataclasses.field(default_factory=dict)


def _parts(extra_specs: ExtraSpecs) -> dict[str, _Parts]:
    """Return the groups by suffix; '' for the unsuffixed request."""
    found: dict[str, _Parts] = {}
    for key, value in extra_specs.items():
        match = _KEY.fullmatch(key)
        if not match:
            continue
        parts = found.setdefault(match[2] or '', _Parts())
        if match[1] == 'trait':
            parts.traits[match[3]] = value
        elif (number := _number(value)) is not None:
            parts.resources[match[3]] = number
    return found


def _number(text: str) -> int | None:
    """Return the number that a text is, None if it is not a usable one."""
    try:
        return int(text) if text.isdecimal() else None
    except ValueError:
        # It has more digits than Python converts.
        return None


def _valid(traits: collections.abc.Mapping[str, str]) -> dict[str, str]:
    """Drop traits with other values, as Nova does with a warning."""
    return {trait: strength for trait, strength in traits.items()
            if strength in (device_profile.REQUIRED, device_profile.FORBIDDEN)}


def _runs(groups: collections.abc.Iterable[device_profile.Group],
          ) -> collections.abc.Iterator[tuple[int, device_profile.Group, int]]:
    """Yield each run of equal groups: its first index, the group, a count."""
    index = 0
    for group, equal in itertools.groupby(groups):
        count = len(list(equal))
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
    for number, one in enumerate(group.any_of):
        keys[f'{ANY_KEY}{name}-{number}'] = ','.join(one)
    return keys


def _group(specs: ExtraSpecs, name: str, parts: _Parts, count: int,
           ) -> device_profile.Group:
    prefix = f'{FORBIDDEN_KEY}{name}:'
    forbidden = {key.removeprefix(prefix): device_profile.FORBIDDEN
                 for key in specs if key.startswith(prefix)}
    return device_profile.Group(
        {resource_class: amount // count
         for resource_class, amount in parts.resources.items()},
        {**parts.traits, **forbidden},
        specs.get(NUMA_KEY + name, device_profile.OFF),
        specs.get(BITSTREAM_KEY + name, ''), tuple(_any_of(specs, name)))


def _any_of(specs: ExtraSpecs, name: str,
            ) -> collections.abc.Iterator[tuple[str, ...]]:
    for number in range(device_profile.MAX_ALTERNATIVES):
        written = specs.get(f'{ANY_KEY}{name}-{number}')
        if written is None:
            return
        yield tuple(filter(None, written.split(',')))


def _count(specs: ExtraSpecs, name: str) -> int:
    number = _number(specs.get(COUNT_KEY + name, '1'))
    return min(max(number or 1, 1), _MAX_COUNT)


def _names(base: str, count: int) -> list[str]:
    return [device_profile.group_name(_index(base) + number)
            for number in range(count)]


def _index(name: str) -> int:
    return int(name.removeprefix(device_profile.GROUP))


def _rules(thing: str, profile: device_profile.Profile, own: ExtraSpecs,
           ) -> tuple[affinity.Rule, ...]:
    names = tuple(device_profile.group_name(index)
                  for index in range(len(profile.groups)))
    policy = own.get('group_policy', profile.group_policy)
    if policy != device_profile.ISOLATE:
        return profile.rules
    # All devices of a resource class may be one provider. Placement therefore
    # cannot put groups on different devices.
    isolated = affinity.isolation_rules(names)
    affinity_document.check(profile.rules,
                            dict.fromkeys(isolated, 'group_policy'), thing)
    return (*profile.rules, *isolated)


def _is_for_placement(thing: str, own: ExtraSpecs, added: ExtraSpecs) -> bool:
    """Whether the flavor's own group_policy stays in its extra specs.

    Without the key, nova-scheduler sends group_policy=none to Placement.
    AggregateInstanceExtraSpecsFilter compares any key that has no colon with
    the metadata of aggregates, so no such key is added.
    """
    if own.get('group_policy') != device_profile.ISOLATE:
        return True
    asked = [match[3] for key in added if (match := _KEY.fullmatch(key))
             and match[1] == 'resources']
    repeated = {name for name in asked if asked.count(name) > 1}
    if repeated and _suffixes(own):
        raise errors.ProfileError(
            thing, f'has several groups of {min(repeated)}, which may be one '
            'provider in Placement, and the flavor has groups of its own with '
            'group_policy=isolate', 'set the flavor\'s group_policy to none')
    # Keep it if possible: it also isolates the groups of ports and aliases.
    return not repeated


def _check_switches(thing: str, profile: device_profile.Profile) -> None:
    """Check that a guest has bus numbers for the switches, on any host."""
    count = sum(amount for group in profile.groups
                for amount in group.resources.values())
    if count > device_profile.MAX_BEHIND_SWITCHES:
        raise errors.ProfileError(
            thing, f'it asks for guest_switches and {count} devices; a guest '
            'may lack PCI bus numbers for the switches of more than '
            f'{device_profile.MAX_BEHIND_SWITCHES}',
            'remove guest_switches, or ask for fewer devices')


def _check_conflicts(thing: str, profile: device_profile.Profile,
                     own: ExtraSpecs, added: ExtraSpecs) -> None:
    wanted = {name for group in profile.groups for name in group.resources}
    for key in own:
        match = _KEY.fullmatch(key)
        if match and match[1] == 'resources' and match[3] in wanted:
            raise errors.ProfileError(
                thing, f'the flavor itself also asks for {match[3]} ({key})',
                'remove it from the flavor or from the profile')
        if (match and match[2] and _OURS.fullmatch(match[2])) or (
                key in added or key.startswith(_WRITTEN)):
            raise errors.ProfileError(
                thing, f'the flavor itself has {key}, which the profile '
                'would write', 'remove it from the flavor')


def _suffixes(specs: ExtraSpecs) -> set[str]:
    return {match[2] for key in specs
            if (match := _KEY.fullmatch(key)) and match[2]}


def _check_size(thing: str, specs: ExtraSpecs) -> None:
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
