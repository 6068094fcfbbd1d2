# SPDX-License-Identifier: Apache-2.0
"""``nova-accel migrate``: plans to move to nova_accel, and parts of them.

The command writes files, and the extra specs of flavors. It never edits
nova.conf, and never touches a server.
"""

import abc
import argparse
import collections.abc
import json
import os
import pathlib
import textwrap
import typing

import yaml

from nova_accel.cmd import cloud_data
from nova_accel.cmd import host as hosts
from nova_accel.cmd import text
from nova_accel.core import errors
from nova_accel.core.migration import classes
from nova_accel.core.migration import cyborg
from nova_accel.core.migration import pci
from nova_accel.core.migration import plan
from nova_accel.core.request import moved_classes
from nova_accel.host import reader
from nova_accel.osc import columns
from nova_accel.profiles import document
from nova_accel.profiles import store

_INPUTS = {
    'flavors': 'flavor list --all --long',
    'servers': 'server list --all-projects --long',
    'profiles': 'accelerator device profile list',
    'arqs': 'accelerator arq list',
}


class _Migrate(text.ShowOne, metaclass=abc.ABCMeta):
    """Show a plan; with --apply, also do steps of it."""

    inputs: tuple[str, ...] = ('flavors', 'servers')

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--directory', metavar='DIR', default='nova-accel-migration',
            help='directory for the files of the plan (default: %(default)s)')
        parser.add_argument(
            '--apply', action='store_true',
            help='do the steps up to the first one that is not automatic')
        parser.add_argument(
            '--from', type=int, default=1, metavar='STEP', dest='first',
            help='with --apply, begin with this step')
        parser.add_argument('--os-cloud', metavar='NAME',
                            help='cloud in clouds.yaml (default: OS_CLOUD)')
        for name in self.inputs:
            parser.add_argument(
                f'--{name}', metavar='FILE', help='output of "openstack '
                f'{_INPUTS[name]} -f json" (default: ask the API)')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> text.Output:
        self.parsed_args = parsed_args
        cloud = cloud_data.CloudData(
            {name: getattr(parsed_args, name) for name in self.inputs},
            parsed_args.os_cloud)
        planned = self.make_plan(cloud, parsed_args.directory.rstrip('/'))
        done = (self._apply(planned, parsed_args.first, cloud)
                if parsed_args.apply else frozenset())
        self.code = int(bool(planned.losses))
        return self.dict2columns(_as_columns(planned, done))

    @abc.abstractmethod
    def make_plan(self, cloud: cloud_data.CloudData,
                  directory: str) -> plan.Plan:
        """Return the plan."""

    def lines(self, names: collections.abc.Sequence[str],
              data: collections.abc.Iterable[typing.Any],
              ) -> collections.abc.Iterator[str]:
        for value in data:
            yield from value.human_readable().splitlines()

    def _apply(self, planned: plan.Plan, first: int,
               cloud: cloud_data.CloudData) -> frozenset[int]:
        """Do steps; return their numbers."""
        done: set[int] = set()
        for number, step in enumerate(planned.steps, 1):
            if number < first:
                continue
            if not step.is_automatic:
                self.app.LOG.info(
                    'step %d is not automatic; do it, then continue with '
                    '--apply --from %d', number, number + 1)
                break
            if step.file:
                _write(step.file)
            if step.change:
                cloud.change(step.change)
            done.add(number)
        return frozenset(done)


class MigratePci(_Migrate):
    """Plan the move from [pci] device_spec and alias, and do parts of it.

    It exits with 1 if something is not carried over.
    """

    def make_plan(self, cloud: cloud_data.CloudData,
                  directory: str) -> plan.Plan:
        conf = self.app.configuration(hosts.SERVICE).pci
        if not conf.device_spec and not conf.alias:
            raise errors.AccelError(
                '[pci]', 'has neither device_spec nor alias',
                'set --config-file to the nova.conf that has them')
        if not conf.device_spec:
            self.app.LOG.warning(
                '[pci] device_spec is not set here; also name the nova.conf '
                'of a nova-compute, so that the plan has its devices')
        return pci.make(pci.Source(conf.device_spec, conf.alias,
                                   cloud.flavors(), cloud.servers()),
                        directory)


class MigrateCyborg(_Migrate):
    """Plan the move from Cyborg, and do parts of it.

    It exits with 1 if something is not carried over.
    """

    inputs = ('profiles', 'flavors', 'arqs', 'servers')

    def make_plan(self, cloud: cloud_data.CloudData,
                  directory: str) -> plan.Plan:
        return cyborg.make(cyborg.Source(
            *cloud.profiles(), cloud.flavors(), cloud.requests(),
            cloud.servers()), directory)


class MigrateClass(_Migrate):
    """Plan the move from a resource class per model to one class.

    The devices of each model get a trait with the name of its class. It exits
    with 1 if something is not carried over.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('--to', required=True, metavar='CLASS',
                            help='the one resource class')
        parser.add_argument('classes', nargs='+', metavar='CLASS',
                            help='an old resource class')
        return parser

    def make_plan(self, cloud: cloud_data.CloudData,
                  directory: str) -> plan.Plan:
        conf = self.app.configuration(hosts.SERVICE).nova_accel
        moves, problems = moved_classes.parse({
            **conf.moved_classes, **dict.fromkeys(
                self.parsed_args.classes, self.parsed_args.to)})
        if problems:
            raise problems[0]
        if not conf.device_spec:
            self.app.LOG.warning(
                'device_spec is not set here; run the command on a host of '
                'each kind as well, so that the plan has its entries')
        entries, broken = reader.parse(conf.device_spec)
        profiles, losses = _moved_profiles(conf.profile_dirs, moves)
        return classes.make(classes.Source(
            entries, profiles, [*broken, *losses], cloud.flavors(),
            cloud.servers()), moves, directory)


def _moved_profiles(directories: collections.abc.Iterable[str],
                    moves: moved_classes.Moves,
                    ) -> tuple[dict[str, str], list[errors.AccelError]]:
    """Return the texts of files of profiles that change, and errors."""
    found: dict[str, str] = {}
    problems: list[errors.AccelError] = []
    for path in _paths(directories):
        try:
            _profiles, broken = store.read_file(path)
            found[path] = '' if broken else _moved(path, moves)
        except OSError as error:
            broken = [store.unreadable(path, error)]
        except errors.ProfileError as error:
            broken = [error]
        problems += (errors.AccelError(
            errors.path(path), f'is not changed: {_without(path, error)}',
            error.remedy) for error in broken)
    return {path: text for path, text in found.items() if text}, problems


def _moved(path: str, moves: moved_classes.Moves) -> str:
    """Return the text of a valid file with the new classes, '' if as it is.

    :raises errors.ProfileError: if a profile cannot ask for the same
    """
    before = document.load(store.read_text(path), path)
    after = moved_classes.document(before, moves)
    if after == before:
        return ''
    return (json.dumps(after[0], indent=2) + '\n' if path.endswith('.json')
            else yaml.safe_dump_all(after, sort_keys=False,
                                    allow_unicode=True))


def _without(path: str, error: errors.AccelError) -> str:
    """Return thing and reason of an error of a file, without its path."""
    label = errors.path(path)
    return error.reason if error.thing == label else (
        f'{error.thing.replace(f" in {label}", "")}: {error.reason}')


def _paths(directories: collections.abc.Iterable[str]) -> list[str]:
    """Return the paths of the files of profiles."""
    return [os.path.join(directory, name) for directory in directories
            if os.path.isdir(directory) for name in store.names(directory)]


def _write(file: plan.File) -> None:
    """Write a file, unless it exists with the same content."""
    path, content = pathlib.Path(file.path), _content(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open('x', encoding='utf-8') as opened:
            opened.write(content)
    except FileExistsError:
        if path.read_bytes() != content.encode():
            raise errors.AccelError(
                errors.path(path), 'exists, and has another content',
                'remove it, or name another --directory') from None


def _content(file: plan.File) -> str:
    if isinstance(file.content, str):
        return file.content
    return yaml.safe_dump(file.content, sort_keys=False, allow_unicode=True)


def _as_columns(planned: plan.Plan, done: frozenset[int],
                ) -> dict[str, columns.Texts]:
    numbered = list(enumerate(planned.steps, 1))
    return {
        'steps': columns.Texts(
            [_step(number, step, number in done) for number, step in numbered],
            [line for number, step in numbered
             for line in _step_lines(number, step, number in done)]),
        'not_carried_over': columns.Texts(
            [{'thing': loss.thing, 'reason': loss.reason,
              'remedy': loss.remedy} for loss in planned.losses],
            _listed('Not carried over:', (
                f'! {loss.thing}: {loss.reason}'
                + (f'\n  {loss.remedy}' if loss.remedy else '')
                for loss in planned.losses))),
        'servers': columns.Texts(
            [{**server._asdict(), 'effect': effect}
             for server, effect in planned.servers],
            _listed('Servers that have devices:', (
                f'- {server.name or server.uuid} ({server.uuid}), host '
                f'{server.host or "unknown"}: {effect}'
                for server, effect in planned.servers))),
    }


def _listed(title: str, lines: collections.abc.Iterable[str]) -> list[str]:
    found = [*lines]
    return ['', title, *found] if found else []


def _step(number: int, step: plan.Step, is_done: bool) -> plan.Json:
    change = step.change
    return {
        'number': number, 'title': step.title, 'done': is_done,
        'automatic': step.is_automatic, 'commands': list(step.commands),
        'rollback': list(step.rollback),
        'file': step.file and {'path': step.file.path,
                               'content': _content(step.file)},
        'flavor': change and {
            'id': change.flavor.uuid, 'name': change.flavor.name,
            'set': dict(change.added), 'unset': list(change.removed)},
    }


def _step_lines(number: int, step: plan.Step, is_done: bool) -> list[str]:
    state = ' (done)' if is_done else ' (--apply)' if step.is_automatic else ''
    content = _content(step.file).splitlines() if step.file else ()
    return [*textwrap.wrap(f'{number}. {step.title}{state}', 79,
                           subsequent_indent='   ', break_long_words=False,
                           break_on_hyphens=False),
            *(f'     {line}' for line in content),
            *(f'   $ {command}' for command in step.commands),
            *(f'   Undo: {command}' for command in step.rollback)]
