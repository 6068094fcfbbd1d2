# SPDX-License-Identifier: Apache-2.0
"""``nova-accel host guest-topology``: what a guest is told of its devices.

It is what a guest of machine type q35 with these devices would be told, if it
has a NUMA cell for each of their nodes.
"""

import argparse
import collections.abc
import dataclasses
import json
import uuid

from nova_accel.cmd import host as hosts
from nova_accel.cmd import main
from nova_accel.core import errors
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.guest import cpuless_cells
from nova_accel.core.guest import device_role
from nova_accel.core.guest import guest_buses
from nova_accel.core.guest import guest_document
from nova_accel.core.guest import nccl_topology
from nova_accel.core.guest import pcie_topology
from nova_accel.core.placement import inventory

#: Stands for the uuids of the server and of the compute node's provider.
_NOBODY = str(uuid.UUID(int=0))


class GuestTopology(main.Command):
    """Print what a guest with these devices would read of them.

    The guest has machine type q35. It has a NUMA cell for each of the host's
    nodes that has one of the devices, in ascending order, and then one for
    each node without CPUs.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        hosts.add_root(parser)
        parser.add_argument(
            '--format', choices=('nccl', 'json'), default='nccl',
            help="NCCL's topology file (the default), or the document that "
                 'the guest reads from fw_cfg')
        parser.add_argument(
            'address', nargs='+', metavar='ADDRESS',
            help='PCI address of a device on the host, such as 0000:81:00.0')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        conf = self.app.configuration(hosts.SERVICE)
        host, problems = hosts.read(parsed_args, conf)
        for problem in problems:
            self.app.LOG.warning(problem)
        addresses = list(dict.fromkeys(
            _find(host, text) for text in parsed_args.address))
        roles = plan(host, addresses)
        nccl, reason = _nccl(roles, host)
        if not nccl:
            self.app.LOG.warning(
                f'The guest gets no topology file for NCCL: {reason}')
        for address, role in zip(addresses, roles, strict=True):
            if nccl and f'"{role.position and role.position.address}"' not in (
                    nccl):
                self.app.LOG.warning(
                    f'{address} is not in the topology file: it is no GPU or '
                    'network card, or its NUMA node is unknown')
        self.app.stdout.write(nccl if parsed_args.format == 'nccl' else (
            json.dumps(guest_document.build(_NOBODY, roles, nccl=nccl),
                       indent=1) + '\n'))


def _find(host: model.Host, text: str) -> model.PciAddress:
    """Return the address of a device of the host.

    :raises errors.AccelError: if it is none
    """
    thing, remedy = errors.plain(text), (
        'name the address of a device as "nova-accel host show --all" does')
    try:
        address = model.PciAddress.parse(text)
    except ValueError:
        raise errors.AccelError(thing, 'is no PCI address',
                                remedy) from None
    function = next((function for function in host.functions
                     if function.address == address), None)
    if not function:
        raise errors.AccelError(thing, 'is not on this host', remedy)
    if function.is_bridge:
        raise errors.AccelError(thing, 'is a bridge, which no guest gets',
                                remedy)
    return address


def plan(host: model.Host,
         addresses: collections.abc.Iterable[model.PciAddress],
         ) -> tuple[device_role.DeviceRole, ...]:
    """Return the roles of devices in a guest with a cell for each node."""
    here = inventory.NodeInventory(host, inventory.Node(_NOBODY, ''))
    providers = {function: item.uuid for item in here.offered
                 for function in item.functions}
    held = tuple(hostdev.Hostdev(address, naming.alias(
        '', providers.get(address, _NOBODY), number))
        for number, address in enumerate(addresses))
    located = pcie_topology.locate(held, host, here.by_uuid)
    nodes = {location.numa_node for location in located.values()
             if location.numa_node is not None}
    cells = {node: cell for cell, node in enumerate(sorted(nodes))}
    cells |= {node: cell for cell, node in enumerate(
        cpuless_cells.plan(located.values(), cells), len(cells))}
    planned = pcie_topology.plan(located, cells, 1)
    roles = device_role.roles(
        tuple(dataclasses.replace(
            device, guest_address=planned.places.get(device.address))
            for device in held),
        guest_buses.GuestBuses(planned.controllers), here, {})
    # The uuids of providers depend on the compute node's.
    return tuple(dataclasses.replace(role, provider='') for role in roles)


def _nccl(roles: collections.abc.Sequence[device_role.DeviceRole],
          host: model.Host) -> tuple[str, str]:
    """Return NCCL's file, or why there is none."""
    try:
        return nccl_topology.render(roles, host, has_cells=True), (
            'none of these devices is a GPU or a network card that is on a '
            'known NUMA node and stays on this host while the guest runs')
    except ValueError as error:
        return '', str(error)
