# SPDX-License-Identifier: Apache-2.0
"""Run a storm in the running cloud: ``... storm.command --seed 7``.

Three projects perform random operations on servers of two nested compute
nodes, while services are killed. After each step, what must never happen is
checked on libvirt, QEMU's open files, Placement, and what guests have read.
"""

import argparse
import json
import sys
import time

import prettytable

from tests.integration import steps
from tests.integration.cloud import cloud as clouds
from tests.integration.machine import node
from tests.integration.nested import scene
from tests.integration.nested import tenant as tenants
from tests.integration.storm import operations
from tests.integration.storm import storm

_ZONE = 'storm'
_PROJECTS = ('storm-1', 'storm-2', 'storm-3')


def main() -> int:
    arguments = _arguments()
    shown = steps.Steps(sys.stderr if arguments.json else sys.stdout)
    cloud = clouds.Cloud()
    with node.nodes(cloud, shown, 2, scene.prepare) as machines:
        blowing = _storm(cloud, machines, arguments, shown)
        begin = time.monotonic()
        problem = ''
        try:
            blowing.blow(arguments.operations, arguments.seconds)
        except storm.Violation as violation:
            problem = str(violation)
        report = _report(blowing.record, arguments.seed,
                         time.monotonic() - begin, problem)
        print(json.dumps(report, indent=2) if arguments.json
              else _text(report), flush=True)
    return 1 if problem else 0


def _arguments():
    parser = argparse.ArgumentParser('storm', description=__doc__)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--operations', type=int, default=300,
                        help='how many (default: %(default)s)')
    parser.add_argument('--kills', type=float, default=0.2,
                        help='part of the steps in which a service is killed '
                        '(default: %(default)s)')
    parser.add_argument('--seconds', type=float, default=3600,
                        help='time limit (default: %(default)s)')
    parser.add_argument('--json', action='store_true',
                        help='write one JSON document at the end')
    return parser.parse_args()


def _storm(cloud, machines, arguments, shown) -> storm.Storm:
    with shown.step('projects, and the devices of the machines'):
        first = scene.enter(cloud, *machines)
        found = [tenants.Tenant(cloud, first.machines,
                                tenants.project(cloud, name))
                 for name in _PROJECTS]
    choice = operations.Choice(arguments.seed, found, _zone(cloud, machines))
    return storm.Storm(cloud, machines, choice, first.ledger,
                       arguments.kills, shown)


def _zone(cloud, machines) -> str:
    """Make an availability zone of the machines alone."""
    compute = cloud.connection.compute
    found = compute.find_aggregate(_ZONE) or compute.create_aggregate(
        name=_ZONE, availability_zone=_ZONE)
    # The hosts of an earlier storm left it with their machines.
    for machine in machines:
        if machine.host not in (found.hosts or ()):
            compute.add_host_to_aggregate(found, machine.host)
    return _ZONE


def _report(record: storm.Record, seed, seconds, problem) -> dict:
    return {
        'seed': seed, 'operations': record.operations, 'steps': record.steps,
        'seconds': round(seconds), 'outcomes': record.counts,
        'kills': record.kills, 'left_by_nova': record.left,
        'rebooted': record.rebooted, 'devices_read': len(record.read),
        'problem': problem}


def _text(report) -> str:
    table = prettytable.PrettyTable(['operation', 'outcomes'])
    table.align = 'l'
    for name, outcomes in sorted(report['outcomes'].items()):
        table.add_row([name, _words(outcomes)])
    return '\n'.join([
        str(table),
        f'seed {report["seed"]}: {report["operations"]} operations in '
        f'{report["steps"]} steps and {report["seconds"]} s',
        f'killed: {_words(report["kills"])}',
        f'servers that Nova left in the middle: {report["left_by_nova"]}; '
        f'reboots of servers after a kill: {report["rebooted"]}',
        f'devices that guests have read: {report["devices_read"]}',
        f'VIOLATED:\n{report["problem"]}' if report['problem'] else
        'nothing happened that must never happen'])


def _words(counts) -> str:
    return ', '.join(f'{count} {name}' for name, count
                     in sorted(counts.items())) or 'none'


if __name__ == '__main__':
    sys.exit(main())
