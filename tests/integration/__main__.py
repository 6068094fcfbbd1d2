# SPDX-License-Identifier: Apache-2.0
"""A real cloud on this machine: ``python -m tests.integration``.

"up" brings the cloud up and holds it until Ctrl-C or "down". Meanwhile "run"
runs pytest in it, with the arguments that follow, and "enter" a command or a
shell, which has the clients and what they need.
"""

import argparse
import os
import shutil
import signal
import sys

from tests.integration import namespaces
from tests.integration import packages
from tests.integration import place
from tests.integration import steps


def main() -> int:
    arguments = _arguments()
    try:
        return _WHAT[arguments.what](arguments) or 0
    except steps.Failure as failure:
        print(f'error: {failure}', file=sys.stderr)
        return 1


def _arguments():
    parser = argparse.ArgumentParser('integration', description=__doc__)
    parser.add_argument('what', choices=_WHAT)
    parser.add_argument('rest', nargs=argparse.REMAINDER)
    return parser.parse_args()


def _up(arguments):
    """Install what is needed, and begin the namespaces."""
    if os.getuid():
        raise steps.Failure('it must be root, to make namespaces and mounts')
    if namespaces.up():
        raise steps.Failure('a cloud is up already: "down" ends it')
    shutil.rmtree(place.STATE, ignore_errors=True)
    shutil.rmtree(place.LOG, ignore_errors=True)
    place.make(place.CACHE, place.STATE, place.LOG)
    install(steps.Steps())
    namespaces.begin(sys.executable, '-m', __package__, 'hold')


def install(shown):
    from tests.integration.cloud import guest
    from tests.integration.cloud import readme

    def all_packages():
        steps.at_once(lambda: packages.apt(*packages.APT),
                      packages.environment)
    with shown.step('packages'):
        all_packages()
        steps.at_once(packages.compiled, guest.build)
    with shown.step('nova-accel'):
        readme.install()


def _hold(_arguments):
    """In the namespaces: bring the cloud up and wait for the end."""
    from tests.integration.cloud import bringing
    from tests.integration.cloud import cloud as clouds
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    cloud = clouds.Cloud()
    shown = steps.Steps()
    try:
        bringing.up(cloud, shown)
        shown.say(shown.table())
        shown.say('The cloud is up, until Ctrl-C or "down".')
        (place.STATE / 'up').touch()
        signal.pause()
    except KeyboardInterrupt:
        pass
    finally:
        bringing.down(cloud)


def _down(_arguments):
    namespaces.end()


def _run(arguments):
    namespaces.enter(sys.executable, '-m', 'pytest', '-p', 'no:cacheprovider',
                     *arguments.rest)


def _enter(arguments):
    from tests.integration.cloud import cloud
    os.environ.update(cloud.environment())
    namespaces.enter(*(arguments.rest or ['bash']))


_WHAT = {'up': _up, 'down': _down, 'run': _run, 'enter': _enter,
         'hold': _hold}


if __name__ == '__main__':
    sys.exit(main())
