# SPDX-License-Identifier: Apache-2.0
"""A plan of a migration: its steps, and what is not carried over.

Nothing here reads or changes anything. A step says how to undo it.
"""

import collections.abc
import json
import shlex
import typing

from nova_accel.core import errors
from nova_accel.core.request import flavor_specs

#: The name of the file with the entries of device_spec.
ENTRIES = 'nova_accel.conf'

#: The directory that nova-api reads profiles from by default.
PROFILES = '/etc/nova/device_profiles.d'

#: JSON of an API, or of a file.
Json = dict[str, typing.Any]


class Flavor(typing.NamedTuple):
    """A flavor of Nova.

    :param size: vcpus, ram (MiB), disk and ephemeral (GiB), swap (MiB), as
        far as they are known and not 0
    :param is_public: whether all projects can use it
    """

    name: str
    uuid: str
    extra_specs: collections.abc.Mapping[str, str]
    size: collections.abc.Mapping[str, int] = {}
    is_public: bool = True


class Server(typing.NamedTuple):
    """A server.

    :param flavor: name of its flavor
    :param extra_specs: those that it was created with, None if not known
    :param host: where it is, '' if not known
    """

    uuid: str
    name: str = ''
    flavor: str = ''
    extra_specs: collections.abc.Mapping[str, str] | None = None
    host: str = ''


class File(typing.NamedTuple):
    """A file to write.

    :param content: a text, or the document of a profile
    """

    path: str
    content: str | Json


class Change(typing.NamedTuple):
    """A change of a flavor's extra specs."""

    flavor: Flavor
    added: collections.abc.Mapping[str, str]
    removed: tuple[str, ...] = ()


class Step(typing.NamedTuple):
    """One step; nova-accel can do it if it has a file or a change.

    :param commands: what a person runs for it
    :param rollback: what a person runs to undo it
    """

    title: str
    commands: tuple[str, ...] = ()
    rollback: tuple[str, ...] = ()
    file: File | None = None
    change: Change | None = None

    @property
    def is_automatic(self) -> bool:
        return bool(self.file or self.change)


class Plan(typing.NamedTuple):
    """A plan.

    :param steps: in their order
    :param losses: what is not carried over, with a remedy for each
    :param servers: what happens to each server that has devices
    """

    steps: tuple[Step, ...]
    losses: tuple[errors.AccelError, ...] = ()
    servers: tuple[tuple[Server, str], ...] = ()


def extra_specs(server: Server, flavors: collections.abc.Iterable[Flavor],
                ) -> collections.abc.Mapping[str, str]:
    """Return the extra specs of a server, or those of its flavor."""
    if server.extra_specs is not None:
        return server.extra_specs
    return next((flavor.extra_specs for flavor in flavors
                 if server.flavor in (flavor.name, flavor.uuid)), {})


def write(directory: str, name: str, content: str | Json) -> Step:
    """Return the step that writes a file."""
    path = f'{directory}/{name}'
    return Step(f'Write {path}', rollback=(f'rm {shlex.quote(path)}',),
                file=File(path, content))


def write_entries(directory: str, items: collections.abc.Iterable[Json],
                  options: collections.abc.Iterable[str] = ()) -> Step:
    """Return the step that writes entries as a part of nova.conf.

    :param options: lines with other options of the section
    """
    return write(directory, ENTRIES, '\n'.join([
        '[nova_accel]', *options, *(f'device_spec = {json.dumps(item)}'
                                    for item in items), '']))


def check_hosts(directory: str) -> Step:
    """Return the step that tries the entries."""
    return Step(
        'On each compute host, check what these entries offer. Change them '
        'until nothing is refused',
        (f'nova-accel --config-file {shlex.quote(directory)}/{ENTRIES} host '
         'show --strict',))


def switch_host(text: str, rollback: str) -> Step:
    """Return the step that gives the devices of a host to nova_accel.

    :param text: what else there is to do
    """
    return Step(
        f'{text}. Add the entries and "[DEFAULT] compute_driver = '
        'accel.LibvirtDriver" to nova.conf, and the filter to that of '
        'nova-scheduler (README). Restart nova-compute. Begin with one host',
        ('nova-accel-status upgrade check', 'nova-accel host show --strict'),
        (rollback, 'remove the entries from nova.conf',
         'systemctl restart nova-compute'))


def copy_profiles(directory: str, names: collections.abc.Iterable[str],
                  effect: str = '') -> Step:
    """Return the step that gives the profiles to nova-api."""
    files = [f'{name}.yaml' for name in names]
    return Step(
        'Copy the profiles to each host that runs nova-api, where the digest '
        f'must be the same{effect}',
        (shlex.join(['cp', *(f'{directory}/{file}' for file in files),
                     PROFILES]),
         'nova-accel profile check', 'nova-accel profile digest'),
        (shlex.join(['rm', *(f'{PROFILES}/{file}' for file in files)]),))


def change_flavor(change: Change) -> Step:
    """Return the step that changes a flavor."""
    name = shlex.quote(change.flavor.name)
    before = {key: change.flavor.extra_specs[key] for key in change.removed}
    return Step(
        f'Change flavor {change.flavor.name}',
        (*_properties(name, change.added, change.removed),),
        (*_properties(name, before, change.added),), change=change)


def profile_specs(name: str) -> dict[str, str]:
    """Return the extra specs of a flavor with a profile."""
    return {flavor_specs.PROFILE_KEY: name}


def _properties(name: str, added: collections.abc.Mapping[str, str],
                removed: collections.abc.Iterable[str],
                ) -> collections.abc.Iterator[str]:
    for verb, properties in (
            ('set', [f'{key}={value}' for key, value in added.items()]),
            ('unset', removed)):
        options = ' '.join(f'--property {shlex.quote(text)}'
                           for text in properties)
        if options:
            yield f'openstack flavor {verb} {options} {name}'
