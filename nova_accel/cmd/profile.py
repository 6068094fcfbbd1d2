# SPDX-License-Identifier: Apache-2.0
"""``nova-accel profile``: what profiles there are, and whether they are right.
"""

import argparse
import collections
import collections.abc
import json
import os
import sys

from oslo_config import cfg
import prettytable

from nova_accel.core import errors
from nova_accel.core.request import device_profile
from nova_accel.core.request import flavor_specs
from nova_accel.profiles import store


def add_parser(topics) -> None:
    verbs = topics.add_parser(
        'profile', help='device profiles').add_subparsers(
        title='verbs', required=True, metavar='show|check')
    show = verbs.add_parser('show', help='all profiles, or one and the extra '
                                         'specs that it becomes')
    _add_common(show)
    show.add_argument('name', nargs='?', help='one profile')
    show.set_defaults(run=_show)
    check = verbs.add_parser('check', help='say what is wrong; exit with 1 '
                                           'where something is')
    _add_common(check)
    check.add_argument('file', nargs='*', help='files to check in place of '
                                               'the directories')
    check.add_argument('--strict', action='store_true',
                       help='exit with 1 also where a directory of nova.conf '
                            'is not there, or one has no profiles')
    check.set_defaults(run=_check)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--profile-dir', action='append', metavar='DIR',
                        help='directory to look in; can be repeated '
                             '(default: profile_dirs in nova.conf)')
    parser.add_argument('--json', action='store_true', help='for programs')


def _store(arguments: argparse.Namespace,
           conf: cfg.ConfigOpts) -> store.Store:
    return store.Store(arguments.profile_dir or conf.nova_accel.profile_dirs)


def _show(arguments: argparse.Namespace, conf: cfg.ConfigOpts) -> int:
    kept = _store(arguments, conf)
    found = [profile for profile in kept.all()
             if arguments.name in (None, profile.name)]
    _warn((*kept.problems(), *kept.missing(), *kept.empty()))
    if arguments.name is not None and not found:
        raise errors.ProfileError(
            f'profile {errors.quote(arguments.name)}', 'is not known; looked '
            f'for in {", ".join(kept.directories)}')
    if arguments.json:
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
        (f'ACCEL{index}', _wish(group), _traits(group), group.numa)
        for index, group in enumerate(profile.groups)]))
    for rule in profile.rules:
        print(rule)
    print(
        f'A flavor with {flavor_specs.PROFILE_KEY}={profile.name} becomes, '
        'for its servers:')
    for key, value in flavor_specs.expand(profile, {}).items():
        print(f'  {key}={value}')


def _check(arguments: argparse.Namespace, conf: cfg.ConfigOpts) -> int:
    found, problems, warnings = (
        (*_read(arguments.file), []) if arguments.file else
        _read_directories(arguments, conf))
    for profile in found:
        try:
            flavor_specs.expand(profile, {})
        except errors.ProfileError as error:
            problems.append(error)
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
    kept = _store(arguments, conf)
    problems, warnings = list(kept.problems()), kept.empty()
    # Where nova.conf says, there may be none yet.
    (problems if arguments.profile_dir else warnings).extend(kept.missing())
    return kept.all(), problems, warnings


def as_data(profile: device_profile.Profile) -> dict:
    """The Profile for programs."""
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
        'extra_specs': _extra_specs(profile),
    }


def _extra_specs(profile: device_profile.Profile) -> dict[str, str] | None:
    """None of one that no flavor can hold, which ``check`` explains."""
    try:
        return flavor_specs.expand(profile, {})
    except errors.ProfileError:
        return None


def _wish(group: device_profile.Group) -> str:
    parts = [f'{amount} {name}' for name, amount in group.resources.items()]
    if group.bitstream:
        parts.append(f'bitstream {group.bitstream}')
    return ', '.join(parts)


def _contents(profile: device_profile.Profile) -> str:
    """Equal groups on one line: ``2 × 1 CUSTOM_GPU``."""
    counts = collections.Counter(map(_wish, profile.groups))
    return '\n'.join(wish if count == 1 else f'{count} × {wish}'
                     for wish, count in counts.items())


def _traits(group: device_profile.Group) -> str:
    return '\n'.join(name if wish == device_profile.REQUIRED else f'not {name}'
                     for name, wish in group.traits.items())


def _table(head, rows) -> prettytable.PrettyTable:
    table = prettytable.PrettyTable(head, align='l')
    table.add_rows(rows)
    return table
