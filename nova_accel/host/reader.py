# SPDX-License-Identifier: Apache-2.0
"""Read a machine into a Host."""

import collections
import collections.abc
import dataclasses
import typing

from nova_accel.core import errors
from nova_accel.core import held_devices
from nova_accel.core import model
from nova_accel.core.device_spec import discovery
from nova_accel.core.device_spec import policy as policies
from nova_accel.core.device_spec import spec_entry
from nova_accel.core.fabric import located
from nova_accel.host import host_use
from nova_accel.host import link_domains
from nova_accel.host import loader
from nova_accel.host import mdev_bus
from nova_accel.host import netdevs
from nova_accel.host import numa
from nova_accel.host import pci
from nova_accel.host import tree as trees
from nova_accel.host import vfio

#: Returns which functions of a machine are withheld, and why.
State = collections.abc.Callable[
    [collections.abc.Sequence[model.Function]],
    collections.abc.Mapping[model.Address, model.Withheld]]

#: Returns what the fabric manager lists, by the functions of a machine.
Locate = collections.abc.Callable[
    [collections.abc.Sequence[model.Function]], located.Located]


class Offer(typing.Protocol):
    """Decides what a machine offers that was read before."""

    def __call__(self, entries: collections.abc.Sequence[spec_entry.Entry],
                 states: collections.abc.Iterable[State] = (),
                 ) -> model.Host:
        """Return the Host that entries make of the machine.

        :param states: each returns functions that are withheld
        """


def parse(texts: collections.abc.Iterable[str],
          option: str = '[nova_accel] device_spec',
          ) -> tuple[list[spec_entry.Entry], list[errors.EntryError]]:
    """Parse an option's entries of installed kinds; and return the errors."""
    return spec_entry.parse_all(texts, loader.load(), option)


def parse_links(path: str) -> tuple[model.Links, list[errors.LinksError]]:
    """Load the ``link_domains`` file; empty Links if it cannot be used."""
    try:
        return link_domains.load(path), []
    except errors.LinksError as error:
        return model.Links(), [error]


def read(tree: trees.Tree,
         entries: collections.abc.Sequence[spec_entry.Entry] = (),
         foreign: collections.abc.Sequence[spec_entry.Claim] = (),
         kinds: discovery.Enumerators | None = None,
         links: model.Links | None = None,
         held: collections.abc.Callable[[], held_devices.Held] = dict,
         policy: policies.Policy = policies.DEFAULT,
         switched: Locate | None = None,
         states: collections.abc.Iterable[State] = ()) -> model.Host:
    """Read a machine and decide which of its devices are offered.

    :param entries: the parsed ``device_spec``
    :param states: each returns functions that are withheld

    The others are the parameters of :func:`read_machine`.
    """
    return read_machine(tree, foreign, kinds, links, held, policy, switched)(
        entries, states)


def read_machine(tree: trees.Tree,
                 foreign: collections.abc.Sequence[spec_entry.Claim] = (),
                 kinds: discovery.Enumerators | None = None,
                 links: model.Links | None = None,
                 held: collections.abc.Callable[[], held_devices.Held] = dict,
                 policy: policies.Policy = policies.DEFAULT,
                 switched: Locate | None = None) -> Offer:
    """Read a machine once, and return a function from entries to a Host.

    :param foreign: what another program claims
    :param kinds: opened on this tree; all installed kinds by default
    :param links: the Links of the ``link_domains`` file
    :param held: returns the devices that domains hold, as for
        :func:`nova_accel.core.device_spec.discovery.offer`
    :param policy: what the options of the host permit
    :param switched: returns what the fabric manager lists, None if there is
        none
    """
    if kinds is None:
        kinds = loader.open_all(tree)
    nodes = numa.read(tree)
    functions, problems = pci.read(tree, nodes.nearest)
    uses, use_problems = host_use.read(tree)
    functions = [dataclasses.replace(function, use=uses[function.address])
                 if function.address in uses else function
                 for function in netdevs.name(tree, functions)]
    functions.extend(pci.read_unreadable(tree, functions))
    functions.extend(mdev_bus.read(tree))
    links, link_problems = link_domains.read(
        tree, functions, links or model.Links(),
        switched(functions) if switched else located.NONE)
    hazards, architecture = vfio.hazards(tree), trees.architecture(tree)

    def decide(entries: collections.abc.Sequence[spec_entry.Entry],
               states: collections.abc.Iterable[State] = ()) -> model.Host:
        withheld: dict[model.Address, list[model.Withheld]] = (
            collections.defaultdict(list))
        for state in states:
            for address, why in state(functions).items():
                withheld[address].append(why)
        host = discovery.offer(
            functions, entries, kinds, foreign,
            [*problems, *use_problems, *link_problems], withheld, held,
            hazards, policy, architecture)
        return dataclasses.replace(
            host, numa_nodes=nodes.with_cpus, cpuless_nodes=nodes.nearest,
            distances=nodes.distances, links=links)
    return decide
