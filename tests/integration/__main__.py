# SPDX-License-Identifier: Apache-2.0
"""Run an OpenStack cloud on this machine: ``python -m tests.integration``.

Numbers and names select the parts of the test. They run one after the other in
one cloud. Without any, the numbered parts run. Instead, "up" brings a cloud up
and keeps it until Ctrl-C or "down". Meanwhile "run ARGUMENTS" runs pytest in
the cloud, and "enter" runs a command or a shell with the OpenStack clients.
"""

import argparse
import json
import os
import pathlib
import shutil
import sys

from tests.integration import namespaces
from tests.integration import packages
from tests.integration import parts
from tests.integration import place
from tests.integration import steps
from tests.integration.cloud import cloud
from tests.integration.cloud import guest
from tests.integration.cloud import install_guide

_GIB = 1 << 30
#: Bytes of memory and disk that a cloud needs.
_MEMORY, _DISK = 5 * _GIB, 6 * _GIB
#: Bytes of memory and disk that each nested machine needs.
_MORE_MEMORY, _MORE_DISK = 4 * _GIB, 4 * _GIB


def main() -> int:
    words = sys.argv[1:]
    try:
        if words[:1] and words[0] in _INTO:
            return _INTO[words[0]](words[1:])
        return _begin(_arguments())
    except steps.Failure as failure:
        print(f'error: {failure}', file=sys.stderr)
        return 1


def _arguments():
    parser = argparse.ArgumentParser(
        'integration', description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog='\n'.join(f'{name:8} {part.about}'
                         for name, part in parts.PARTS.items()))
    parser.add_argument(
        'what', nargs='*', metavar='WHAT',
        help=f'{", ".join(parts.PARTS)}; or up, down, run, enter')
    parser.add_argument('--keep', action='store_true',
                        help='keep the cloud up after the parts')
    parser.add_argument('--clean', action='store_true',
                        help='first delete the cache of earlier runs')
    parser.add_argument('--json', action='store_true',
                        help='write one JSON document at the end')
    arguments = parser.parse_args()
    unknown = set(arguments.what) - {*parts.PARTS, 'up'}
    if unknown:
        parser.error(f'there is no part {", ".join(sorted(unknown))}, only '
                     f'{", ".join(parts.PARTS)}')
    return arguments


def _begin(arguments):
    """Install packages, then continue in new namespaces."""
    if namespaces.up():
        raise steps.Failure('a cloud is already up: end it with "down", or '
                            'run tests in it with "run"')
    names = [name for name in arguments.what if name != 'up']
    if not arguments.what:
        names = [name for name in parts.PARTS if name.isdigit()]
    _check_root()
    there = _there()
    if not arguments.what:
        names = _fitting(names, there)
    lacking = _lacking(_machines(names), there)
    if lacking:
        raise steps.Failure(lacking)
    for directory in (place.WORK if arguments.clean else place.STATE,
                      place.LOG):
        shutil.rmtree(directory, ignore_errors=True)
    place.make(place.CACHE, place.STATE, place.LOG)
    shown = steps.Steps(sys.stderr if arguments.json else sys.stdout)
    _install(shown)
    for name in names:
        parts.PARTS[name].prepare(shown)
    namespaces.begin(
        sys.executable, '-m', f'{__package__}.session', *names,
        '--taken', json.dumps(shown.taken),
        *['--keep'] * (arguments.keep or 'up' in arguments.what),
        *['--json'] * arguments.json)


def _check_root():
    if os.getuid():
        raise steps.Failure('run this as root: it makes namespaces, mounts '
                            'and guests')


def _fitting(names, there):
    """Drop the parts that do not fit, unless none does."""
    fitting = [name for name in names
               if not _lacking(_machines([name]), there)]
    for name in set(names).difference(fitting) if fitting else ():
        print(f'part {name} ({parts.PARTS[name].about}) is left out: '
              f'{_lacking(_machines([name]), there)}', file=sys.stderr)
    return fitting or names


def _machines(names):
    return max((parts.PARTS[name].machines for name in names), default=0)


def _lacking(machines, there):
    """Return which resource is too small, '' if none is.

    :param machines: how many nested machines the cloud has
    """
    for what, needed in (('memory', _MEMORY + machines * _MORE_MEMORY),
                         ('disk', _DISK + machines * _MORE_DISK)):
        if there[what] < needed:
            return (f'{there[what] / _GIB:.1f} GiB of {what} are free, but '
                    f'{needed / _GIB:.0f} are needed')
    return ''


def _there():
    """Return free bytes, including those of files that a run replaces."""
    ours = sum(path.lstat().st_blocks * 512 for path in
               place.WORK.rglob('*')) if place.WORK.exists() else 0
    return {'memory': _memory(),
            'disk': shutil.disk_usage(place.ROOT).free + ours}


def _memory():
    lines = pathlib.Path('/proc/meminfo').read_text().splitlines()
    [kib] = [int(line.split()[1]) for line in lines
             if line.startswith('MemAvailable:')]
    return kib << 10


def _install(shown):
    with shown.step('packages of Debian and Python'):
        steps.at_once(lambda: packages.apt(*packages.APT),
                      packages.environment)
        steps.at_once(packages.compiled, guest.build)
    with shown.step('nova-accel, as the installation guide says'):
        install_guide.install()


def _down(_words):
    namespaces.end()
    return 0


def _run(words):
    command = (sys.executable, '-m', 'pytest', '-p', 'no:cacheprovider',
               *words)
    if namespaces.inside():
        os.chdir(place.ROOT)
        os.execv(sys.executable, command)
    namespaces.enter(*command)


def _enter(words):
    os.environ.update(cloud.environment())
    # "python" must be the interpreter that runs the tests.
    os.environ['PATH'] = (f'{os.path.dirname(sys.executable)}:'
                          f'{os.environ["PATH"]}')
    namespaces.enter(*(words or ['bash']))


#: Commands for a running cloud; they parse their own arguments.
_INTO = {'down': _down, 'run': _run, 'enter': _enter}


if __name__ == '__main__':
    sys.exit(main())
