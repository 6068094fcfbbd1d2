# SPDX-License-Identifier: Apache-2.0
"""``nova-accel profile``: show and check device profiles."""

import argparse
import collections
import collections.abc
import hashlib
import json
import os
import sys

from oslo_config import cfg
import prettytable

from nova_accel.core import errors
from nova_accel.core.request import device_profile
from nova_accel.core.request import flavor_specs
from nova_accel.profiles import store

# Hexadecimal digits of a digest; a line of a table has room for them.
_DIGITS = 32


def add_parser(topics) -> None:
    verbs = topics.add_parser(
        'profile', help='device profiles').add_subparsers(
        title='verbs', required=True, metavar='show|check')
    show = verbs.add_parser('show', help='show all profiles, or one with its '
                                         'extra specs')
    _add_common(show)
    show.add_argument('name', nargs='?', help='name of a profile')
    show.add_argument('--digest', action='store_true',
                      help='print only a digest of the profiles, which is '
                           'the same on each host with the same profiles')
    show.set_defaults(run=_show)
    check = verbs.add_parser('check', help='list the problems; exit with 1 '
                                           'if there are any')
    _add_common(check)
    check.add_argument('file', nargs='*', help='files to check instead of '
                                               'the directories')
    check.add_argument('--strict', action='store_true',
                       help='exit with 1 also if a directory of nova.conf '
                            'does not exist, or one has no profile files')
    check.set_defaults(run=_check)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--profile-dir', action='append', metavar='DIR',
                        help='directory of profiles; can be repeated '
                             '(default: profile_dirs in nova.conf)')
    parser.add_argument('--json', action='store_true', help='print JSON')


def _store(arguments: argparse.Namespace,
           conf: cfg.ConfigOpts) -> store.Store:
    return store.Store(arguments.profile_dir or conf.nova_accel.profile_dirs)


def _show(arguments: argparse.Namespace, conf: cfg.ConfigOpts) -> int:
    profiles = _store(arguments, conf)
    found = [profile for profile in profiles.all()
             if arguments.name in (None, profile.name)]
    _warn((*profiles.problems(), *profiles.missing(), *profiles.empty()))
    if arguments.name is not None and not found:
        raise errors.ProfileError(
            f'profile {errors.quote(arguments.name)}', 'is not known; looked '
            f'for in {", ".join(profiles.directories)}')
    if arguments.digest:
        print(digest(found))
    elif arguments.json:
        print(json.dumps([as_data(profile) for profile in found], indent=2))
    elif arguments.name is None:
        print(_table(('profile', 'groups', 'asks for', 'description'), [
            (profile.name, len(profile.groups), _contents(profile),
             profile.description) for profile in found]))
    else:
        _show_one(found[0])
    return 0


def _show_one(profile: device_profile.Profile) -> None:
    print(f'{profile.name}: {profile.description or "(no description)"}')
    print(_table(('group', 'resources', 'traits', 'numa'), [
        (f'ACCEL{index}', _resources(group), _traits(group), group.numa)
        for index, group in enumerate(profile.groups)]))
    for rule in profile.rules:
        print(rule)
    print(
        f'Extra specs of a server whose flavor has {flavor_specs.PROFILE_KEY}='
        f'{profile.name}:')
    for key, value in flavor_specs.expand(profile, {}).items():
        print(f'  {key}={value}')


def _check(arguments: argparse.Namespace, conf: cfg.ConfigOpts) -> int:
    found, problems, warnings = (
        (*_read(arguments.file), []) if arguments.file else
        _read_directories(arguments, conf))
    problems.extend(unusable(found))
    if arguments.json:
        print(json.dumps({
            'profiles': [profile.name for profile in found],
            'problems': [*map(_error, problems)],
            'warnings': [*map(_error, warnings)],
        }, indent=2))
    else:
        for error in problems:
            print(f'! {error}')
        print(f'{len(found)} profiles, {len(problems)} problems')
    _warn(warnings)
    return 1 if problems or (arguments.strict and warnings) else 0


def _warn(warnings: collections.abc.Iterable[errors.ProfileError]) -> None:
    for warning in warnings:
        print(f'nova-accel: {warning}', file=sys.stderr)


def _error(error: errors.ProfileError) -> dict[str, str]:
    return {'thing': error.thing, 'reason': error.reason,
            'remedy': error.remedy}


def _read(files: list[str]):
    found: list[device_profile.Profile] = []
    problems: list[errors.ProfileError] = []
    for path in files:
        try:
            good, bad = store.read_file(os.fspath(path))
        except errors.ProfileError as error:
            good, bad = [], [error]
        except OSError as error:
            good, bad = [], [store.unreadable(path, error)]
        found.extend(good)
        problems.extend(bad)
    return found, problems


def _read_directories(arguments, conf):
    profiles = _store(arguments, conf)
    problems, warnings = list(profiles.problems()), profiles.empty()
    # A directory of nova.conf need not exist before the first profile.
    (problems if arguments.profile_dir else warnings).extend(
        profiles.missing())
    return profiles.all(), problems, warnings


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
    text = json.dumps([*map(_content, profiles)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def as_data(profile: device_profile.Profile) -> dict:
    """Return a Profile as plain data, for JSON."""
    return {**_content(profile), 'extra_specs': _extra_specs(profile)}


def _content(profile: device_profile.Profile) -> dict:
    return {
        'name': profile.name,
        'description': profile.description,
        'group_policy': profile.group_policy,
        'groups': [{'resources': dict(group.resources),
                    'traits': dict(group.traits), 'numa': group.numa,
                    'bitstream': group.bitstream}
                   for group in profile.groups],
        'affinity': [{'key': rule.key, 'same': rule.same,
                      'groups': list(rule.groups), 'weight': rule.weight}
                     for rule in profile.rules],
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


def _contents(profile: device_profile.Profile) -> str:
    """Return the groups, equal ones on one line: ``2 × 1 CUSTOM_GPU``."""
    counts = collections.Counter(map(_resources, profile.groups))
    return '\n'.join(text if count == 1 else f'{count} × {text}'
                     for text, count in counts.items())


def _traits(group: device_profile.Group) -> str:
    return '\n'.join(
        name if strength == device_profile.REQUIRED else f'not {name}'
        for name, strength in group.traits.items())


def _table(head, rows) -> prettytable.PrettyTable:
    table = prettytable.PrettyTable(head, align='l')
    table.add_rows(rows)
    return table
