# SPDX-License-Identifier: Apache-2.0
"""``openstack accel plan``: the fewest migrations for a purpose."""

import argparse
import collections.abc
import shlex
import time
import typing

from osc_lib.command import command

from nova_accel.core import errors
from nova_accel.core.capacity import room
from nova_accel.core.moves import fleet as fleets
from nova_accel.core.moves import goals
from nova_accel.core.moves import search
from nova_accel.osc import cloud as clouds
from nova_accel.osc import columns
from nova_accel.osc import moves
from nova_accel.osc import profiles
from nova_accel.osc import progress

# Nova has "host" for a cold migration since this microversion.
_COMMAND = 'openstack --os-compute-api-version 2.56 server'

_SECONDS = 60
# How long to look for a plan with another host.
_SPARE_SECONDS = 5


class _Plan(command.ShowOne):
    """Base of the commands."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            '--seconds', metavar='<seconds>', type=_positive,
            default=_SECONDS, help='Search no longer than this '
            f'(default: {_SECONDS})')
        return parser

    def _plan(self, request: str, cloud: fleets.Fleet, goal: goals.Goal,
              options: argparse.Namespace, note: str = '') -> columns.Output:
        """Search a plan and return it.

        :param note: what the operator has to know besides
        """
        found = search.Search(cloud, goal, _left_of(options.seconds),
                              progress.Searched()).run()
        moves = found.moves or ()
        return self.dict2columns({
            'request': request,
            'moves': None if found.moves is None else len(moves),
            'fewest': found.moves is not None and found.is_least,
            'reason': '; '.join(filter(None, [
                _reason(found, goal, cloud, options.seconds), note])) or None,
            'steps': columns.Texts([_step(move, cloud) for move in moves],
                                   _lines(moves, cloud)),
        })


class MakeRoom(_Plan):
    """Propose the fewest migrations that make room for servers.

    It changes nothing. Only servers with devices move. Each step is possible
    when the steps before it are done.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('--profile', metavar='<profile>', required=True,
                            help='Room for servers with this device profile')
        parser.add_argument('--count', metavar='<number>', type=_positive,
                            default=1, help='Room for so many (default: 1)')
        parser.add_argument('--host', metavar='<host>', default='',
                            help='Room on this compute node')
        profiles.add_options(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Output:
        client = clouds.of(self)
        wanted = profiles.contents(client.compute, parsed_args.profile,
                                   parsed_args.profile_dir).request()
        cloud = moves.read(client)
        closed = ''
        if parsed_args.host:
            _check_host(cloud, parsed_args.host)
            closed = cloud.hosts[parsed_args.host].closed
        rooms = room.Rooms(wanted, cloud.classes)
        text = (f'room for {parsed_args.count} × profile '
                f'{errors.plain(parsed_args.profile)}'
                + f' on {parsed_args.host}' * bool(parsed_args.host))
        return self._plan(
            text, cloud, goals.Room(rooms, parsed_args.count,
                                    parsed_args.host), parsed_args,
            f'{parsed_args.host} gets no servers: {closed}' if closed else '')


def _left_of(seconds: int) -> collections.abc.Callable[[], float]:
    """Return a function that returns the part of the time that is left."""
    began = time.monotonic()
    return lambda: 1 - (time.monotonic() - began) / seconds


def _positive(text: str) -> int:
    """Return the number that an argument is.

    :raises argparse.ArgumentTypeError: if it is none
    """
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(
            f'{errors.quote(text)} is not a whole number above 0')
    return int(text)


class Drain(_Plan):
    """Propose the fewest migrations after which a host has no servers.

    It changes nothing. Only servers with devices move. Each step is possible
    when the steps before it are done.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('host', metavar='<host>',
                            help='Name of the compute node')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Output:
        cloud = moves.read(clouds.of(self))
        _check_host(cloud, parsed_args.host)
        others = cloud.held_by_others(parsed_args.host)
        return self._plan(
            f'no server with devices on {parsed_args.host}', cloud,
            goals.Drain(parsed_args.host), parsed_args,
            f'{errors.count(others, "unit")} of {parsed_args.host} held by no '
            'server there, such as by a resize that is not confirmed'
            if others else '')


def _check_host(cloud: fleets.Fleet, name: str) -> None:
    if name not in cloud.hosts:
        raise errors.AccelError(
            f'compute node {errors.plain(name)}', 'has no devices',
            'see "openstack accel host list"')


def _step(move: search.Move, cloud: fleets.Fleet) -> dict[str, typing.Any]:
    """Return a move as programs read it."""
    return {'server': move.server.uuid, 'name': move.server.name,
            'from': move.source, 'to': move.destination, 'how': move.way,
            'commands': _commands(move, cloud)}


def _lines(moves: collections.abc.Iterable[search.Move],
           cloud: fleets.Fleet) -> collections.abc.Iterator[str]:
    """Yield lines of a shell script."""
    for number, move in enumerate(moves, 1):
        yield (f'# {number}. {errors.plain(move.server.name)}: {move.source} '
               f'to {move.destination}, {move.way}')
        yield from _commands(move, cloud)


def _commands(move: search.Move, cloud: fleets.Fleet) -> list[str]:
    live = '--live-migration ' * (move.way == fleets.LIVE)
    host = shlex.quote(cloud.hosts[move.destination].service)
    return [f'{_COMMAND} migrate {live}--wait --host {host} '
            f'{move.server.uuid}',
            # Until then, the server also has its old devices.
            *[f'{_COMMAND} migration confirm {move.server.uuid}'
              ] * (move.way == fleets.COLD)]


def _reason(found: search.Plan, goal: goals.Goal, cloud: fleets.Fleet,
            seconds: int) -> str | None:
    """Return why there is no plan, or why a shorter one is possible."""
    if found.moves is not None:
        return (None if found.is_least else
                'the best plan found; fewer moves are not ruled out')
    if held_up := goal.held_up(cloud):
        return '; '.join(f'server {server.uuid} cannot move: '
                         f'{server.obstacle}' for server in held_up)
    if lacking := goals.lacking(goal, cloud):
        return '; '.join(
            f'{needed} free {name} are needed, and {free} are free'
            for name, (needed, free) in lacking.items())
    reason = (f'no plan of at most {search.EXACT} moves exists'
              if found.is_least else
              f'no plan was found; more than {errors.count(seconds, "second")}'
              ' (--seconds) may find one')
    return '; '.join([reason, *filter(None, [
        _with_spare(goal, cloud, min(seconds, _SPARE_SECONDS))])])


def _with_spare(goal: goals.Goal, cloud: fleets.Fleet, seconds: int) -> str:
    """Say what another host would change, '' for nothing.

    :param seconds: the time for each search
    """
    like, fleet = cloud.with_spare(goal.closed)
    for wanted, text in (
            (goals.Passing(goal),
             'servers would have to change places, and no host has room for '
             f'one of them meanwhile; if another host like {like} had it, '),
            (goal, f'with another free host like {like}, ')):
        found = search.Search(fleet, wanted, _left_of(seconds)).run()
        if found.moves:
            return (text + errors.count(len(found.moves), 'move')
                    + ' would do')
    return ''
