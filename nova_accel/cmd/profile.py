# SPDX-License-Identifier: Apache-2.0
"""``nova-accel profile``: show and check device profiles."""

import argparse
import collections
import collections.abc
import dataclasses
import hashlib
import json

from cliff import lister
from cliff import show

from nova_accel.cmd import main
from nova_accel.cmd import text
from nova_accel.core import errors
from nova_accel.core.request import alternatives
from nova_accel.core.request import device_profile
from nova_accel.core.request import flavor_specs
from nova_accel.osc import columns
from nova_accel.profiles import store

# Hexadecimal digits of a digest; a line of a table has room for them.
_DIGITS = 32


class ListProfile(main.Command, lister.Lister):
    """List the device profiles that nova-api reads."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_directory(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> text.Output:
        return ('Name', 'Groups', 'Resources', 'Description'), [
            (profile.name, len(profile.groups),
             columns.Lines(_contents(profile)), profile.description)
            for profile in _known(self.app, parsed_args)]


class ShowProfile(main.Command, show.ShowOne):
    """Show a device profile, and the extra specs that it stands for."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_directory(parser)
        parser.add_argument('profile', help='name of the profile')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> text.Output:
        [profile] = _known(self.app, parsed_args, [parsed_args.profile])
        data = as_data(profile)
        return self.dict2columns({
            **data,
            'groups': columns.Texts(data['groups'], map(
                _group, enumerate(profile.groups))),
            'affinity': columns.Texts(data['affinity'],
                                      map(str, profile.rules)),
            'extra_specs': columns.Texts(data['extra_specs'], [
                f'{key}={value}'
                for key, value in (data['extra_specs'] or {}).items()])})


class DigestProfile(main.Command):
    """Print a digest of all profiles, or of some.

    It is the same on each host with the same profiles.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_directory(parser)
        parser.add_argument('profile', nargs='*', help='name of a profile')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        found = _known(self.app, parsed_args, parsed_args.profile)
        self.app.stdout.write(f'{digest(found)}\n')


class CheckProfile(text.Findings):
    """List what is wrong with device profiles.

    It exits with 1 if there are errors.
    """

    columns = (*text.Findings.columns, 'Severity')

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        _add_directory(parser)
        parser.add_argument('file', nargs='*', help='files to check instead '
                                                    'of the directories')
        parser.add_argument(
            '--strict', action='store_true',
            help='exit with 1 also if a directory of nova.conf does not '
                 'exist, or one has no profile files')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> text.Output:
        read = (_read(parsed_args.file) if parsed_args.file else
                _read_directories(self.app, parsed_args))
        problems = [*read.problems, *unusable(read.profiles)]
        self.code = int(bool(problems or (parsed_args.strict
                                          and read.warnings)))
        self.app.LOG.info('%s, %s',
                          errors.count(len(read.profiles), 'profile'),
                          errors.count(len(problems), 'problem'))
        return self.columns, [
            (error.thing, error.reason, error.remedy, severity)
            for severity, group in ((text.ERROR, problems),
                                    (text.WARNING, read.warnings))
            for error in group]


@dataclasses.dataclass
class _Read:
    """The profiles of some files, and what is wrong with these files."""

    profiles: list[device_profile.Profile] = dataclasses.field(
        default_factory=list)
    problems: list[errors.ProfileError] = dataclasses.field(
        default_factory=list)
    warnings: list[errors.ProfileError] = dataclasses.field(
        default_factory=list)


def _add_directory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--profile-dir', action='append', metavar='DIR',
                        help='directory of profiles; can be repeated '
                             '(default: profile_dirs in nova.conf)')


def _store(app: main.Application,
           parsed_args: argparse.Namespace) -> store.Store:
    return store.Store(parsed_args.profile_dir
                       or app.configuration().nova_accel.profile_dirs)


def _known(app: main.Application, parsed_args: argparse.Namespace,
           names: collections.abc.Collection[str] = (),
           ) -> list[device_profile.Profile]:
    """Return all profiles, or those of some names; log what is wrong.

    :raises errors.ProfileError: if there is no profile of a name
    """
    profiles = _store(app, parsed_args)
    found = {profile.name: profile for profile in profiles.all()}
    for warning in (*profiles.problems(), *profiles.missing(),
                    *profiles.empty()):
        app.LOG.warning(warning)
    for name in names:
        if name not in found:
            raise errors.ProfileError(
                f'profile {errors.quote(name)}', 'is not known; looked for in '
                f'{", ".join(profiles.directories)}')
    return [profile for name, profile in found.items()
            if not names or name in names]


def _read(files: list[str]) -> _Read:
    read = _Read()
    for path in files:
        try:
            found, problems = store.read_file(path)
        except errors.ProfileError as error:
            read.problems.append(error)
        except OSError as error:
            read.problems.append(store.unreadable(path, error))
        else:
            read.profiles.extend(found)
            read.problems.extend(problems)
    return read


def _read_directories(app: main.Application,
                      parsed_args: argparse.Namespace) -> _Read:
    profiles = _store(app, parsed_args)
    read = _Read(list(profiles.all()), list(profiles.problems()),
                 list(profiles.empty()))
    # A directory of nova.conf need not exist before the first profile.
    (read.problems if parsed_args.profile_dir else read.warnings).extend(
        profiles.missing())
    return read


def unusable(profiles: collections.abc.Iterable[device_profile.Profile],
             ) -> collections.abc.Iterator[errors.ProfileError]:
    """Yield an error for each Profile whose extra specs no flavor can hold."""
    for profile in profiles:
        try:
            flavor_specs.expand(profile, {})
        except errors.ProfileError as error:
            yield error


def digest(profiles: collections.abc.Iterable[device_profile.Profile]) -> str:
    """Return a digest of the content of Profiles, sorted by name.

    The format of the files and their names do not change it. Neither does the
    version of nova_accel, which may change the extra specs of a Profile.

    :returns: the first 32 hexadecimal digits of a SHA-256
    """
    content = json.dumps([*map(_content, profiles)], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:_DIGITS]


def as_data(profile: device_profile.Profile) -> text.Data:
    """Return a Profile as plain data, for JSON."""
    return {**_content(profile), 'extra_specs': _extra_specs(profile)}


def _content(profile: device_profile.Profile) -> text.Data:
    return {
        'name': profile.name,
        'description': profile.description,
        'group_policy': profile.group_policy,
        'groups': [{'resources': dict(group.resources),
                    'traits': dict(group.traits), 'numa': group.numa,
                    'bitstream': group.bitstream,
                    **({'any_of': group.any_of} if group.any_of else {})}
                   for group in profile.groups],
        'affinity': [{'key': rule.key, 'same': rule.same,
                      'groups': list(rule.groups), 'weight': rule.weight}
                     for rule in profile.rules],
        # Only if they are set, so that older versions give the same digest.
        **{key: value for key in ('guest_switches', 'gpu_cliques',
                                  'same_domain', 'per')
           if (value := getattr(profile, key))},
    }


def _extra_specs(profile: device_profile.Profile) -> dict[str, str] | None:
    """Return None if no flavor can hold them; ``check`` gives the reason."""
    try:
        return flavor_specs.expand(profile, {})
    except errors.ProfileError:
        return None


def _resources(group: device_profile.Group) -> str:
    parts = [f'{amount} {name}' for name, amount in group.resources.items()]
    if group.bitstream:
        parts.append(f'bitstream {group.bitstream}')
    return ', '.join(parts)


def _contents(profile: device_profile.Profile) -> list[str]:
    """Return a text for each kind of group: ``2 × 1 CUSTOM_GPU``."""
    counts = collections.Counter(map(_resources, profile.groups))
    return [text if count == 1 else f'{count} × {text}'
            for text, count in counts.items()]


def _group(numbered: tuple[int, device_profile.Group]) -> str:
    index, group = numbered
    traits = [name if strength == device_profile.REQUIRED else f'not {name}'
              for name, strength in group.traits.items()]
    if group.any_of:
        traits.append(' else '.join(map(alternatives.text, group.any_of)))
    return (f'{device_profile.group_name(index)}: '
            + ', '.join([_resources(group), *traits, f'numa {group.numa}']))
