# SPDX-License-Identifier: Apache-2.0
"""From one resource class per model to one class, with a trait per model.

nova-compute moves the servers themselves, with the option ``moved_classes``
(:mod:`nova_accel.core.request.moved_classes`).
"""

import collections
import collections.abc
import os.path
import shlex
import typing

import os_resource_classes as orc

from nova_accel.core import errors
from nova_accel.core import naming
from nova_accel.core.device_spec import spec_entry
from nova_accel.core.migration import plan
from nova_accel.core.request import moved_classes

Problems = list[errors.AccelError]


class Source(typing.NamedTuple):
    """What there is now.

    :param entries: those of ``[nova_accel] device_spec``
    :param profiles: the texts with the new classes of files of profiles, by
        path; only those that change
    :param problems: errors of entries and files that cannot be changed
    :param servers: all servers, or none if they are not known
    """

    entries: collections.abc.Sequence[spec_entry.Entry]
    profiles: collections.abc.Mapping[str, str]
    problems: collections.abc.Sequence[errors.AccelError]
    flavors: collections.abc.Sequence[plan.Flavor]
    servers: collections.abc.Sequence[plan.Server] = ()


def make(source: Source, moves: moved_classes.Moves,
         directory: str) -> plan.Plan:
    """Return the plan.

    :param directory: for the files
    """
    losses: Problems = [*source.problems]
    items = [_item(entry, moves, losses) for entry in source.entries]
    changes = _flavors(source.flavors, moves, losses)
    moved = ','.join(f'{old}:{new}' for old, new in moves.items())
    names = _names(source.profiles)
    files = {path: f'{directory}/{name}' for path, name in names.items()}
    steps = [
        *(plan.write(directory, names[path], text)
          for path, text in source.profiles.items()),
        plan.write_entries(directory, items, [f'moved_classes = {moved}'])]
    if items:
        steps.append(plan.check_hosts(directory))
    steps += [_limits(moves), _switch(
        'Switch one compute host', '. Do the next step soon: until then, '
        'servers of this host cannot be live-migrated, evacuated or unshelved '
        'to others'),
              _switch_api(moved, files)]
    steps += map(plan.change_flavor, changes)
    steps += [_switch('Switch the other compute hosts'),
              _finish(moves)]
    return plan.Plan(tuple(steps), tuple(losses), tuple(
        (server, _effect(server)) for server in source.servers
        if moved_classes.is_moved(plan.extra_specs(server, source.flavors),
                                  moves)))


def _names(paths: collections.abc.Iterable[str]) -> dict[str, str]:
    """Return names for files in one directory, by path."""
    names = {path: os.path.basename(path) for path in paths}
    unique = collections.Counter(names.values())
    # Files of two directories can have one name.
    whole = {path: path.strip('/').replace('/', '-') for path in names}
    same = collections.Counter(whole.values())
    return {path: name if unique[name] == 1 else whole[path]
            if same[whole[path]] == 1 else f'{number}-{whole[path]}'
            for number, (path, name) in enumerate(names.items(), 1)}


def _item(entry: spec_entry.Entry, moves: moved_classes.Moves,
          losses: Problems) -> plan.Json:
    """Return an entry as it is to be written."""
    old = entry.resource_class or _default_class(entry)
    if old in moves:
        return {**entry.item, 'resource_class': moves[old], 'traits': sorted(
            {*entry.traits, moved_classes.trait(old)})}
    if old in moves.values():
        losses.append(errors.AccelError(
            entry.label, f'has the class {old} already: servers that ask for '
            'it, without a trait, get the other models as well',
            'give its devices a trait, and ask for the trait'))
    elif 'regions_file' in entry.item:
        losses.append(errors.AccelError(
            entry.label, 'has a regions_file, which can name classes',
            'change the classes and traits in the file'))
    elif not old:
        losses.append(errors.AccelError(
            entry.label, 'does not say which class its devices have',
            f'write an entry for each model, with one of {", ".join(moves)}'))
    return dict(entry.item)


def _default_class(entry: spec_entry.Entry) -> str:
    """Return the class of an entry without ``resource_class``, if known."""
    if {'mdev_type', 'vgpu_type'} & entry.item.keys():
        return str(orc.VGPU)
    if entry.vendor_id and entry.product_id:
        return naming.default_resource_class(entry.vendor_id,
                                             entry.product_id)
    return ''


def _flavors(flavors: collections.abc.Iterable[plan.Flavor],
             moves: moved_classes.Moves, losses: Problems,
             ) -> collections.abc.Iterator[plan.Change]:
    """Yield the changes of flavors that ask for a class themselves."""
    for flavor in flavors:
        before = flavor.extra_specs
        try:
            after = moved_classes.rewrite(before, moves)
        except errors.ProfileError as error:
            losses.append(errors.AccelError(
                f'flavor {errors.plain(flavor.name)}', 'is not changed: '
                f'{error.thing}: {error.reason}', error.remedy))
            continue
        if after != before:
            yield plan.Change(
                flavor, dict(after.items() - before.items()),
                tuple(sorted(before.keys() - after.keys())))


def _limits(moves: moved_classes.Moves) -> plan.Step:
    """Return the step without which new servers exceed a limit of 0."""
    return plan.Step(
        'If Keystone has limits of these classes, register limits of '
        + ', '.join(f'class:{new}' for new in sorted(set(moves.values())))
        + '. Give each project the sum of its old limits',
        tuple(f'openstack {kind} list --service nova --resource-name '
              f'class:{old}' for old in moves
              for kind in ('registered limit', 'limit')))


def _switch(title: str, more: str = '') -> plan.Step:
    return plan.Step(
        f'{title}: replace device_spec in nova.conf, add moved_classes, and '
        'restart nova-compute. It moves the servers of the host in the next '
        f'runs of its periodic tasks{more}',
        ('nova-accel host show --strict',),
        ('restore device_spec, remove moved_classes',
         'systemctl restart nova-compute'))


def _switch_api(moved: str, files: collections.abc.Mapping[str, str],
                ) -> plan.Step:
    """Return the step from which on new servers get the new class."""
    return plan.Step(
        f'Add "[nova_accel] moved_classes = {moved}" to the nova.conf of each '
        'nova-api and nova-scheduler, and restart them. Copy the profiles to '
        'each host that runs nova-api. From then on, new servers, and servers '
        'that move, get the new class, on hosts that are switched',
        (*(shlex.join(['cp', new, path]) for path, new in files.items()),
         'systemctl restart nova-api nova-scheduler',
         'nova-accel profile check', 'nova-accel profile digest'),
        (*(f'restore {path}' for path in files),
         'remove moved_classes, and restart nova-api and nova-scheduler'))


def _finish(moves: moved_classes.Moves) -> plan.Step:
    return plan.Step(
        'When the command lists no server below any more, delete the limits '
        f'of {", ".join(moves)}. Ask without --flavors and --servers: such '
        'files do not have the flavors that servers keep. Leave moved_classes '
        'in nova.conf: Nova keeps the request of each server as it was')


def _effect(server: plan.Server) -> str:
    if not server.host:
        return ('is on no host. It gets the new class when it is unshelved')
    return ('keeps its devices. nova-compute moves it to the new class when '
            'its host is switched')
