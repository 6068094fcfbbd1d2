# SPDX-License-Identifier: Apache-2.0
"""Use a nested machine by hand: ``python -m tests.integration.machine``.

"install" builds the machine's files. The other commands run in the cloud,
which "python -m tests.integration enter" enters.
"""

import argparse
import json
import os
import sys

from tests.integration import packages
from tests.integration import place
from tests.integration import steps
from tests.integration.cloud import cloud as clouds
from tests.integration.machine import built
from tests.integration.machine import machine as machines
from tests.integration.machine import node


def main() -> int:
    arguments = _arguments()
    shown = steps.Steps(sys.stderr)
    try:
        arguments.do(arguments, shown)
    except steps.Failure as failure:
        print(f'error: {failure}', file=sys.stderr)
        return 1
    return 0


def _arguments():
    parser = argparse.ArgumentParser(
        'machine', description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--number', type=int, choices=(1, 2), default=1,
                        help='number of the machine; up: how many machines')
    commands = parser.add_subparsers(required=True)
    for do, about in ((_install, 'build the files'),
                      (_up, 'power it on and make it a compute node'),
                      (_down, 'power it off and delete its disk'),
                      (_reboot, 'reboot it as an operator does')):
        commands.add_parser(do.__name__[1:], help=about).set_defaults(do=do)
    ssh = commands.add_parser('ssh', help='run a shell or a command in it')
    ssh.add_argument('words', nargs=argparse.REMAINDER)
    ssh.set_defaults(do=_ssh)
    monitor = commands.add_parser('monitor', help='send a QMP command to QEMU')
    monitor.add_argument('command')
    monitor.add_argument('arguments', type=json.loads, nargs='?', default={})
    monitor.set_defaults(do=_monitor)
    return parser.parse_args()


def _machine(arguments):
    return machines.Machine(arguments.number, built.load())


def _install(_arguments, shown):
    place.make(place.CACHE, place.LOG)
    # The uv in this environment also installs the machine's packages.
    with shown.step("the cloud's Python packages"):
        packages.environment()
    built.install(shown)


def _up(arguments, shown):
    node.up(clouds.Cloud(), shown, arguments.number)


def _down(arguments, _shown):
    node.down(_machine(arguments), clouds.Cloud())


def _reboot(arguments, shown):
    machine = _machine(arguments)
    node.attach(machine, clouds.Cloud())
    with shown.step(f'reboot {machine.host}'):
        machine.reboot()


def _ssh(arguments, _shown):
    words = _machine(arguments).ssh() + arguments.words
    os.execvp(words[0], words)


def _monitor(arguments, _shown):
    print(json.dumps(_machine(arguments).monitor(
        arguments.command, **arguments.arguments), indent=1))


if __name__ == '__main__':
    sys.exit(main())
