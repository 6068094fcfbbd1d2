# SPDX-License-Identifier: Apache-2.0
"""Gives servers the resource classes that their devices have now.

An entry can give another class to devices that servers have. Their providers
then keep the old class, reserved, until the servers have left. With the
option ``moved_classes``, servers change to the new class while they run:

1. The flavor of the server gets the request for the new class, if no task of
   the server has started. nova-compute reads flavors as if this were done.
2. Placement gets the inventories and the allocations of the new class, in one
   request.

Each step can be repeated: the class of a provider tells that the second one is
not done. A server that is between two states follows later.
"""

import collections.abc
import contextlib

from keystoneauth1 import exceptions as keystone
from nova import exception
from oslo_log import log as logging

from nova_accel import moved_flavors
from nova_accel.compute import instance_state
from nova_accel.compute import log_once
from nova_accel.compute import server_flavor
from nova_accel.compute.state import node_state
from nova_accel.core import errors
from nova_accel.core import held_devices
from nova_accel.core import hostdev
from nova_accel.core.assignment import class_move
from nova_accel.core.placement import inventory

LOG = logging.getLogger(__name__)


class ClassMover:
    """Moves the servers of this host to new resource classes."""

    def __init__(self, state: node_state.NodeState) -> None:
        self._state = state
        self._findings = log_once.LogOnce(LOG)
        # What servers hold whose flavors have been seen: look these up in
        # Nova's database only once.
        self._seen: dict[str, hostdev.Hostdevs] = {}

    def move(self, here: inventory.NodeInventory,
             classes_of: collections.abc.Callable[
                 [str], collections.abc.Collection[str]]) -> None:
        """Move all servers that can be moved.

        :param classes_of: returns the classes of a provider's inventory
        """
        if not moved_flavors.moves():
            return
        lines: list[log_once.Line] = []
        domains = self._state.domains.read()
        self._seen = {uuid: held for uuid, held in self._seen.items()
                      if uuid in domains}
        for uuid, held in domains.items():
            if hostdev.ours(held) and self._seen.get(uuid) != held:
                with _reporting(f'server {uuid}', lines), _settled(uuid):
                    self._seen[uuid] = held
        with _reporting(f'compute node {here.node.name}', lines):
            self._move_all(*class_move.outdated(
                here, classes_of, moved_flavors.moves()), domains, here, lines)
        self._findings.log(lines)

    def _move_all(self, changes, problems, domains, here, lines) -> None:
        """Move the allocations of providers with an old class."""
        consumers_of = self._state.placement_client.allocations_of_provider
        # What is not offered any more is removed if nobody has it.
        lines += [(logging.WARNING, str(problem)) for uuid, problem
                  in problems.items()
                  if uuid in here.by_uuid or consumers_of(uuid)]
        # At first, this run creates the provider of a new class.
        if class_move.new_class_providers(
                here.node.uuid, changes).keys() <= here.node.ours.keys():
            for group in class_move.together({
                    uuid: consumers_of(uuid) for uuid in changes}):
                self._move(group, changes, domains, here, lines)

    def _move(self, group: class_move.Together, changes, domains, here,
              lines) -> None:
        """Move the allocations of servers that share providers."""
        names = ', '.join(sorted(group.consumers))
        with _reporting(f'consumer {names}', lines), (
                contextlib.ExitStack()) as stack:
            for uuid in sorted(group.consumers):
                if uuid not in domains:
                    raise errors.AssignmentError(
                        uuid, 'is no server with a domain here',
                        'confirm or revert a resize of a server; hard reboot '
                        'a server in ERROR')
                stack.enter_context(_settled(uuid))
            self._state.placement_client.move_classes(
                here.node.uuid, {uuid: changes[uuid]
                                 for uuid in group.providers},
                group.consumers)
            for uuid in group.consumers:
                for item, functions in held_devices.dirty(domains[uuid], here):
                    # The request has made it free.
                    self._state.use(item, functions)
            LOG.info('The devices %s of %s have another resource class now: '
                     '%s', ', '.join(sorted(
                         here.node.ours[uuid] for uuid in group.providers)),
                     names, ', '.join(sorted({
                         f'{old} has become {new}' for old, new in (
                             changes[uuid] for uuid in group.providers)})))


@contextlib.contextmanager
def _settled(uuid: str) -> collections.abc.Iterator[None]:
    """Hold the lock of a server that has the new flavor.

    :raises errors.AssignmentError: if it is between two states
    """
    with server_flavor.lock(uuid):
        instance = server_flavor.find(uuid)
        if not instance or not instance_state.is_settled_here(instance):
            raise errors.AssignmentError(
                uuid, 'is in the middle of an operation, or rescued, shelved '
                'or resized', 'it follows when this has ended')
        specs = moved_flavors.extra_specs(instance.flavor)
        if specs is not instance.flavor.extra_specs:
            server_flavor.write(instance, specs)
        yield


@contextlib.contextmanager
def _reporting(thing: str, lines: list[log_once.Line],
               ) -> collections.abc.Iterator[None]:
    """Turn an error into a line of the log."""
    try:
        yield
    except server_flavor.BUSY as error:
        lines.append((logging.DEBUG, f'{thing} is busy, and keeps its '
                      f'resource classes in this run: {error}'))
    except (errors.AccelError, exception.NovaException,
            keystone.ClientException) as error:
        lines.append((logging.WARNING,
                      f'{thing} keeps its resource classes: {error}'))
