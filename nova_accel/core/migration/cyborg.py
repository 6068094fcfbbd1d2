# SPDX-License-Identifier: Apache-2.0
"""From Cyborg's device profiles and ARQs to entries and profiles.

Source of the classes and traits: the drivers of Cyborg
(cyborg/accelerator/drivers, read in July 2026). Nova keeps a server with an
accelerator request (ARQ) from moves, and asks Cyborg again when it is
unshelved; only its deletion frees the device for nova_accel.
"""

import collections.abc
import itertools
import re
import typing

from nova_accel.core import errors
from nova_accel.core.migration import plan
from nova_accel.core.request import device_profile
from nova_accel.core.request import flavor_specs


class Request(typing.NamedTuple):
    """An accelerator request (ARQ).

    :param server: uuid of the server, '' if it has none
    :param host: name of the compute node, '' if it has none
    """

    uuid: str
    profile: str = ''
    server: str = ''
    host: str = ''


class Source(typing.NamedTuple):
    """What there is now.

    :param problems: errors of the profiles that cannot be read
    :param servers: all servers, or none if they are not known
    """

    profiles: collections.abc.Sequence[device_profile.Profile]
    problems: collections.abc.Sequence[errors.AccelError]
    flavors: collections.abc.Sequence[plan.Flavor]
    requests: collections.abc.Sequence[Request]
    servers: collections.abc.Sequence[plan.Server] = ()


class _Driver(typing.NamedTuple):
    """How a driver of Cyborg names its devices.

    :param names: matches a resource class and traits, each after a blank
    :param keys: of the entry; ``product_id`` comes from the names if it is
        not here
    """

    names: re.Pattern[str]
    keys: plan.Json


def _driver(names: str, **keys: str) -> _Driver:
    return _Driver(re.compile(names, re.ASCII), keys)


_ID = r'(?P<product_id>[0-9A-F]{4})\b'
_DRIVERS = (
    _driver(rf'^ PGPU\b.* CUSTOM_NVIDIA_{_ID}', vendor_id='10de'),
    _driver(r'^ FPGA\b.* CUSTOM_FPGA_INTEL_PAC_ARRIA10\b', vendor_id='8086',
            product_id='09c4', kind='fpga'),
    _driver(rf'^ FPGA\b.* CUSTOM_FPGA_PRODUCT_ID_{_ID}.* CUSTOM_FPGA_XILINX\b',
            vendor_id='10ee'),
    _driver(rf'^ FPGA\b.* CUSTOM_FPGA_INSPUR\b.* CUSTOM_FPGA_PRODUCT_ID_{_ID}',
            vendor_id='1bd4'),
    _driver(r'^ CUSTOM_QAT\b', vendor_id='8086', product_id='37c9'),
    _driver(rf'^ CUSTOM_SSD\b.* CUSTOM_SSD_PRODUCT_ID_{_ID}', vendor_id='1bd4',
            one_time_use='yes'),
    _driver(rf'^ CUSTOM_PCI\b.* CUSTOM_PCI_NVIDIA\b.*'
            rf' CUSTOM_PCI_PRODUCT_ID_{_ID}', vendor_id='10de'),
    _driver(rf'^ CUSTOM_PCI\b.* CUSTOM_PCI_MATROX\b.*'
            rf' CUSTOM_PCI_PRODUCT_ID_{_ID}', vendor_id='102b'),
)


def make(source: Source, directory: str) -> plan.Plan:
    """Return the plan.

    :param directory: for the files
    """
    losses = [*source.problems]
    entries = _entries(source.profiles, losses)
    held: dict[str, list[Request]] = {}
    for request in source.requests:
        held.setdefault(request.server, []).append(request)
    held.pop('', None)
    servers = [_server(uuid, source.servers, requests)
               for uuid, requests in held.items()]
    steps = [plan.write(directory, f'{profile.name}.yaml', document(profile))
             for profile in source.profiles]
    if entries:
        steps += plan.write_entries(directory, entries), plan.check_hosts(
            directory)
    steps.append(plan.switch_host(
        'Switch each compute host: stop cyborg-agent there. When nova-compute '
        'has taken over its servers, delete the resource providers of Cyborg '
        'below that of the compute node',
        'create servers that were taken over again; start cyborg-agent, which '
        'makes its resource providers again'))
    if source.profiles:
        steps.append(plan.copy_profiles(
            directory, [profile.name for profile in source.profiles],
            '. From then on, new servers of ' + _flavors(source, losses)
            + ' get their devices from nova-accel, and no ARQ'))
    steps.append(_finish(source.requests))
    return plan.Plan(tuple(steps), tuple(losses), tuple(
        (server, 'keeps the devices of ' + _several(held[server.uuid]) + '. '
         'nova-compute takes it over when its host is switched. If its device '
         'is a vGPU, create it again instead') for server in servers))


def document(profile: device_profile.Profile) -> plan.Json:
    """Return the document of a Profile in our format.

    The inverse of :func:`device_profile.parse` for a profile without rules.
    """
    groups = []
    for group, equal in itertools.groupby(profile.groups):
        written: plan.Json = {'resources': dict(group.resources)}
        count = len(list(equal))
        for key, value, default in (
                ('traits', dict(group.traits), {}), ('count', count, 1),
                ('bitstream', group.bitstream, '')):
            if value != default:
                written[key] = value
        groups.append(written)
    return {'name': profile.name,
            **({'description': profile.description}
               if profile.description else {}),
            **({'group_policy': profile.group_policy}
               if profile.group_policy else {}),
            'groups': groups}


def _entries(profiles: collections.abc.Iterable[device_profile.Profile],
             losses: list[errors.AccelError]) -> list[plan.Json]:
    """Return the entries for the devices that profiles ask for."""
    found: dict[tuple[str, str, str], plan.Json] = {}
    for profile in profiles:
        for index, group in enumerate(profile.groups):
            entry = _entry(group)
            if entry is None:
                losses.append(_unknown(profile, index, group))
                continue
            key = (entry['vendor_id'], entry['product_id'],
                   entry['resource_class'])
            known = found.setdefault(key, entry)
            known['traits'] = sorted({*known['traits'], *entry['traits']})
    return [{key: value for key, value in entry.items() if value}
            for entry in found.values()]


def _entry(group: device_profile.Group) -> plan.Json | None:
    """Return the entry of a group's devices, None if it is not known."""
    [resource_class] = group.resources
    traits = sorted(name for name, strength in group.traits.items()
                    if strength == device_profile.REQUIRED)
    names = ''.join(f' {name}' for name in (resource_class, *traits))
    for driver in _DRIVERS:
        if match := driver.names.search(names):
            ids = {key: value.lower()
                   for key, value in match.groupdict().items()}
            # The kind fpga sets the traits itself.
            return {**driver.keys, **ids, 'resource_class': resource_class,
                    'traits': [] if 'kind' in driver.keys else traits}
    return None


def _unknown(profile: device_profile.Profile, index: int,
             group: device_profile.Group) -> errors.AccelError:
    [resource_class] = group.resources
    traits = ', '.join(name for name, strength in group.traits.items()
                       if strength == device_profile.REQUIRED)
    return errors.AccelError(
        f'device profile {errors.quote(profile.name)}, group {index}',
        f'asks for {resource_class}, and its traits do not tell which '
        'devices these are', 'write an entry of [nova_accel] device_spec with '
        f'"resource_class": "{resource_class}"'
        + (f' and the traits {traits}' if traits else ''))


def _flavors(source: Source, losses: list[errors.AccelError]) -> str:
    """Return the names of the flavors that have a profile of Cyborg's."""
    known = {profile.name for profile in source.profiles}
    names = []
    for flavor in source.flavors:
        name = flavor.extra_specs.get(flavor_specs.PROFILE_KEY)
        if name in known:
            names.append(flavor.name)
        elif name is not None:
            losses.append(errors.AccelError(
                f'flavor {errors.plain(flavor.name)}', 'names the device '
                f'profile {errors.quote(name)}, which is not carried over',
                'write this profile, or delete the flavor'))
    return f'the flavors {", ".join(names)}' if names else 'no flavor'


def _server(uuid: str, servers: collections.abc.Iterable[plan.Server],
            requests: list[Request]) -> plan.Server:
    known = next((server for server in servers if server.uuid == uuid),
                 plan.Server(uuid))
    return known._replace(host=known.host or requests[0].host)


def _several(requests: list[Request]) -> str:
    return 'ARQ ' + ', '.join(request.uuid for request in requests)


def _finish(requests: collections.abc.Iterable[Request]) -> plan.Step:
    return plan.Step(
        'When all hosts are switched, delete the ARQs, remove [cyborg] from '
        'the nova.conf of nova-api, and stop the services of Cyborg',
        tuple(f'openstack accelerator arq delete {request.uuid}'
              for request in requests),
        ('start the services of Cyborg again',))
