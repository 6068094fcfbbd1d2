# SPDX-License-Identifier: Apache-2.0
"""From ``[pci] device_spec`` and ``alias`` to entries and profiles.

Source of what the options mean: nova/pci/devspec.py, nova/pci/request.py and
nova/conf/pci.py of Nova 34. As in Nova, ``resource_class`` and ``traits`` of
an alias are used together with those of ``device_spec``.
"""

import collections.abc
import json
import re
import shlex
import typing

from nova_accel.core import errors
from nova_accel.core import naming
from nova_accel.core.device_spec import spec_entry
from nova_accel.core.migration import plan
from nova_accel.core.request import device_profile
from nova_accel.core.request import flavor_specs

#: The trait of devices that an alias with ``live_migratable`` asks for.
LIVE_MIGRATABLE = 'CUSTOM_LIVE_MIGRATABLE'

_OPTION = '[pci] device_spec'
_POLICY_KEY = 'hw:pci_numa_affinity_policy'
_LEGACY, _SOCKET = 'legacy', 'socket'
# Extra specs that give a guest one NUMA node if hw:numa_nodes is not set.
_TOPOLOGY = re.compile(r'hw:(mem_page_size|numa_\w+\.\d+)')
_YES = frozenset({'true', 'yes', 'on', '1', 't', 'y'})

Problems = list[errors.AccelError]


class Source(typing.NamedTuple):
    """What there is now.

    :param device_spec: values of ``[pci] device_spec``
    :param alias: values of ``[pci] alias``
    :param servers: all servers, or none if they are not known
    """

    device_spec: collections.abc.Sequence[str]
    alias: collections.abc.Sequence[str]
    flavors: collections.abc.Sequence[plan.Flavor]
    servers: collections.abc.Sequence[plan.Server] = ()


class Entry(typing.NamedTuple):
    """An entry, as it is written and as it is read."""

    item: plan.Json
    parsed: spec_entry.Entry


class Alias(typing.NamedTuple):
    """An alias.

    :param specs: those of its name; a device has to match one of them
    """

    name: str
    specs: tuple[plan.Json, ...]
    numa_policy: str


#: Aliases by name.
Aliases = collections.abc.Mapping[str, Alias]


class _Request(typing.NamedTuple):
    """What an alias asks for, as a group of a profile has it."""

    resource_class: str
    traits: collections.abc.Mapping[str, str]


def make(source: Source, directory: str) -> plan.Plan:
    """Return the plan.

    :param directory: for the files
    """
    losses: Problems = []
    aliases = _aliases(source.alias, losses)
    entries = _entries(source.device_spec, losses)
    if any('live_migratable' in spec for alias in aliases.values()
           for spec in alias.specs):
        entries = [*map(_marked, entries)]
    profiles, changes = _flavors(source.flavors, aliases, entries, losses)
    servers = [server for server in source.servers
               if flavor_specs.ALIAS_KEY in plan.extra_specs(
                   server, source.flavors)]
    steps = [
        *(plan.write(directory, f'{name}.yaml', document)
          for name, document in profiles.items()),
        *_host_steps(entries, directory)]
    if profiles:
        steps.append(plan.copy_profiles(directory, profiles))
    steps += map(plan.change_flavor, changes)
    steps += _server_steps(servers, changes)
    if aliases:
        steps.append(plan.Step(
            'When no server and no flavor has an alias any more, remove '
            '[pci] alias from nova.conf everywhere',
            rollback=('add [pci] alias to nova.conf again',)))
    return plan.Plan(tuple(steps), tuple(losses), tuple(
        (server, 'keeps its devices. nova-compute takes it over when its host '
         'is switched') for server in servers))


def _host_steps(entries: collections.abc.Collection[Entry], directory: str,
                ) -> collections.abc.Iterator[plan.Step]:
    if entries:
        yield plan.write_entries(directory, [entry.item for entry in entries])
        yield plan.check_hosts(directory)
        yield plan.switch_host(
            'Switch each compute host: remove the same devices from [pci] '
            'device_spec; leave a host with [pci] report_in_placement until '
            'no server there has devices by an alias',
            'resize servers that were taken over to a flavor with an alias, '
            'on another host; add the devices to [pci] device_spec again')


def _entries(texts: collections.abc.Iterable[str], losses: Problems,
             ) -> list[Entry]:
    """Return the entries that name the same devices."""
    found = []
    for number, text in enumerate(texts, 1):
        label = f'{_OPTION} #{number}'
        try:
            items = spec_entry.load(text, label)
        except errors.EntryError as error:
            losses.append(error)
            continue
        for item in items:
            try:
                found.append(_entry(item, label))
            except errors.AccelError as error:
                losses.append(error)
    return found


def _entry(item: typing.Any, label: str) -> Entry:
    keys = set(item) if isinstance(item, dict) else set()
    if network := sorted(keys & spec_entry.NETWORK_KEYS):
        raise errors.EntryError(
            label, f'has {network[0]}, as devices for ports of Neutron have',
            f'leave it in {_OPTION}, or name the device by its address')
    return Entry(item, spec_entry.parse(item, label, {}))


def _marked(entry: Entry) -> Entry:
    """Return an entry whose devices have the trait if they can move."""
    if not entry.parsed.live_migratable:
        return entry
    return _entry({**entry.item, 'traits': sorted(
        entry.parsed.traits | {LIVE_MIGRATABLE})}, entry.parsed.label)


def _aliases(texts: collections.abc.Iterable[str], losses: Problems,
             ) -> dict[str, Alias]:
    """Return the aliases by name."""
    found: dict[str, Alias] = {}
    for number, text in enumerate(texts, 1):
        label = f'[pci] alias #{number}'
        try:
            spec = json.loads(text)
            name = spec['name'].strip()
        except (ValueError, KeyError, TypeError, AttributeError,
                RecursionError):
            losses.append(errors.AccelError(
                label, f'is not a JSON object with a name: '
                f'{errors.quote(text)}', 'correct it'))
            continue
        if spec.get('device_type') == 'type-PF':
            losses.append(errors.AccelError(
                label, 'asks for type-PF; nova_accel offers a card as a whole '
                'only if it has no virtual functions',
                'write 0 to its sriov_numvfs'))
        known = found.get(name, Alias(
            name, (), spec.get('numa_policy') or _LEGACY))
        found[name] = known._replace(specs=(*known.specs, spec))
    return found


def _flavors(flavors: collections.abc.Iterable[plan.Flavor], aliases: Aliases,
             entries: collections.abc.Collection[Entry], losses: Problems,
             ) -> tuple[dict[str, plan.Json], list[plan.Change]]:
    """Return the documents of profiles by name, and the changes of flavors."""
    profiles: dict[str, plan.Json] = {}
    changes = []
    for flavor in flavors:
        if flavor_specs.ALIAS_KEY not in flavor.extra_specs:
            continue
        try:
            document = _profile(flavor, aliases, entries, losses)
        except errors.AccelError as error:
            losses.append(errors.AccelError(
                f'flavor {errors.plain(flavor.name)}', 'is not changed: '
                f'{error.thing}: {error.reason}', error.remedy))
            continue
        name = _unique(document, profiles)
        profiles[name] = {**document, 'name': name}
        changes.append(plan.Change(flavor, plan.profile_specs(name),
                                   (flavor_specs.ALIAS_KEY,)))
    return profiles, changes


def _unique(document: plan.Json,
            profiles: collections.abc.Mapping[str, plan.Json]) -> str:
    """Return the name of a profile; equal profiles have one name."""
    name: str = document['name']
    number = 1
    while profiles.get(name, {}).get('groups') not in (None,
                                                       document['groups']):
        number += 1
        name = f'{document["name"]}-{number}'
    return name


def _profile(flavor: plan.Flavor, aliases: Aliases,
             entries: collections.abc.Collection[Entry], losses: Problems,
             ) -> plan.Json:
    """Return the document of a flavor's profile.

    :raises errors.AccelError: if there is none that asks for the same
    """
    text = flavor.extra_specs[flavor_specs.ALIAS_KEY]
    asked = _asked(text, aliases)
    name = re.sub('[^A-Za-z0-9_-]+', '-', '-'.join(
        f'{alias.name}-{count}' if count > 1 else alias.name
        for alias, count in asked))
    # It has both if a change of this plan was interrupted.
    if flavor.extra_specs.get(flavor_specs.PROFILE_KEY, name) != name:
        raise errors.AccelError(
            'its extra specs', f'also have {flavor_specs.PROFILE_KEY}',
            'write one profile for both')
    total = sum(count for _alias, count in asked)
    document = {
        'name': name,
        'description': f'{flavor_specs.ALIAS_KEY}={text}',
        'groups': [_group(alias, count, entries, _numa(
            flavor, alias, total, losses)) for alias, count in asked]}
    profile = device_profile.parse(document, flavor_specs.ALIAS_KEY)
    flavor_specs.expand(profile, {
        key: value for key, value in flavor.extra_specs.items()
        if key != flavor_specs.ALIAS_KEY})
    return document


def _asked(text: str, aliases: Aliases) -> list[tuple[Alias, int]]:
    """Return the aliases in an extra spec, ``a:2,b:1``, and their counts."""
    found = []
    for part in text.split(','):
        name, _colon, count = part.partition(':')
        if name.strip() not in aliases:
            raise errors.AccelError(
                f'alias {errors.plain(name.strip())}',
                'is not in [pci] alias', 'read the nova.conf of nova-api')
        if not count.strip().isdecimal() or not int(count):
            raise errors.AccelError(
                flavor_specs.ALIAS_KEY,
                f'{errors.quote(text)} is not like "a:2,b:1"', 'correct it')
        found.append((aliases[name.strip()], int(count)))
    return found


def _group(alias: Alias, count: int,
           entries: collections.abc.Collection[Entry], numa: str | None,
           ) -> plan.Json:
    requests = [request for spec in alias.specs
                for request in _requests(spec, entries)]
    first, *others = requests
    if any(request != first for request in others):
        raise errors.AccelError(
            f'alias {errors.plain(alias.name)}', 'stands for devices of '
            'several resource classes or traits: ' + ', '.join(sorted(
                {request.resource_class for request in requests})),
            'give their entries in device_spec the same resource_class and '
            'traits, or write the profile by hand')
    return {'resources': {first.resource_class: 1},
            **({'traits': dict(first.traits)} if first.traits else {}),
            **({'count': count} if count > 1 else {}),
            **({'numa': numa} if numa else {})}


def _requests(spec: plan.Json, entries: collections.abc.Collection[Entry],
              ) -> list[_Request]:
    """Return what a spec of an alias asks for, once for each class."""
    traits = {naming.normalise_trait(name): device_profile.REQUIRED
              for name in str(spec.get('traits') or '').split(',')
              if name.strip()}
    if 'live_migratable' in spec:
        is_wanted = str(spec['live_migratable']).strip().lower() in _YES
        traits[LIVE_MIGRATABLE] = (device_profile.REQUIRED if is_wanted
                                   else device_profile.FORBIDDEN)
    return [_Request(name, traits) for name in _classes(spec, entries)]


def _classes(spec: plan.Json, entries: collections.abc.Collection[Entry],
             ) -> list[str]:
    """Return the resource classes of the devices that a spec stands for."""
    if spec.get('resource_class'):
        return [naming.normalise_resource_class(str(spec['resource_class']))]
    meant = _ids(spec)
    # An entry that names the ids tells more than one that names an address.
    for others in ((), (None,)):
        found = {entry.parsed.resource_class for entry in entries
                 if _has_ids(entry.parsed, meant, others)}
        if found:
            break
    return sorted(name or naming.default_resource_class(*meant)
                  for name in found or {None})


def _ids(spec: plan.Json) -> tuple[str, str]:
    """Return the ids of vendor and product that an alias names."""
    for claim in spec_entry.parse_foreign([json.dumps(spec)], 'alias'):
        if claim.vendor_id and claim.product_id:
            return claim.vendor_id, claim.product_id
    raise errors.AccelError(
        f'alias {errors.plain(spec["name"])}', 'has neither vendor_id and '
        'product_id nor resource_class', 'correct it')


def _has_ids(entry: spec_entry.Entry, meant: tuple[str, str],
             others: tuple[None, ...]) -> bool:
    """Whether an entry has the ids that are meant, or others."""
    return all(named in (one, *others) for named, one in zip(
        (entry.vendor_id, entry.product_id), meant, strict=True))


def _numa(flavor: plan.Flavor, alias: Alias, total: int,
          losses: Problems) -> str | None:
    """Return the value of ``numa`` for a group, None for the default.

    Nova applies a policy only to a guest with NUMA nodes, and then to each
    device alone.

    :param total: number of the flavor's devices
    """
    policy = flavor.extra_specs.get(_POLICY_KEY, alias.numa_policy)
    nodes = _guest_nodes(flavor.extra_specs)
    if policy == _SOCKET and nodes:
        losses.append(errors.AccelError(
            f'alias {errors.plain(alias.name)} in flavor '
            f'{errors.plain(flavor.name)}', 'has the NUMA policy socket; its '
            'profile prefers one NUMA node', 'write "numa: required" if the '
            'devices must be on the NUMA node of the guest'))
    if policy not in (device_profile.REQUIRED, _LEGACY):
        return None
    if nodes > 1 and total > 1:
        losses.append(errors.AccelError(
            f'alias {errors.plain(alias.name)} in flavor '
            f'{errors.plain(flavor.name)}', f'has the NUMA policy {policy}, '
            'by which each device is on any NUMA node of the guest; its '
            'profile prefers one NUMA node for all', 'write "numa: required" '
            'if one NUMA node must have all of them'))
        return None
    is_for_images = policy == device_profile.REQUIRED and total == 1
    return device_profile.REQUIRED if nodes or is_for_images else None


def _guest_nodes(specs: collections.abc.Mapping[str, str]) -> int:
    """Return the number of a guest's NUMA nodes, 0 if it has no topology."""
    nodes = specs.get('hw:numa_nodes', '')
    if nodes.isdecimal():
        return int(nodes)
    return int(any(map(_TOPOLOGY.match, specs))
               or specs.get('hw:cpu_policy') in ('dedicated', 'mixed'))


def _server_steps(servers: collections.abc.Collection[plan.Server],
                  changes: collections.abc.Iterable[plan.Change],
                  ) -> collections.abc.Iterator[plan.Step]:
    """Yield a step for each flavor that servers with devices have."""
    for change in changes:
        found = [server.uuid for server in servers if server.flavor in (
            change.flavor.name, change.flavor.uuid)]
        if found:
            yield _resize(found, change)


def _resize(uuids: list[str], change: plan.Change) -> plan.Step:
    flavor, other = change.flavor, f'{change.flavor.name}-accel'
    specs = {key: value for key, value in flavor.extra_specs.items()
             if key not in change.removed} | dict(change.added)
    options = ['--private'] * (not flavor.is_public)
    for name, number in flavor.size.items():
        options += f'--{name}', str(number)
    for key, value in specs.items():
        options += '--property', f'{key}={value}'
    resize = 'openstack server resize'
    return plan.Step(
        f'Resize the servers of flavor {flavor.name} that are on hosts with '
        '[pci] report_in_placement, and switch the hosts that they leave. '
        'Nova does not resize to the same flavor, so create another one',
        (shlex.join(['openstack', 'flavor', 'create', *options, other]),
         *(f'{resize} --flavor {shlex.quote(other)} --wait {uuid}'
           for uuid in uuids),
         *(f'{resize} confirm {uuid}' for uuid in uuids)),
        tuple(f'{resize} revert {uuid}' for uuid in uuids))
