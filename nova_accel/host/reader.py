# SPDX-License-Identifier: Apache-2.0
"""A machine read into a Host."""

import collections.abc
import dataclasses

from nova_accel.core import entry as entries_
from nova_accel.core import errors
from nova_accel.core import holding
from nova_accel.core import model
from nova_accel.core import offer
from nova_accel.host import links as links_
from nova_accel.host import loader
from nova_accel.host import netdevs
from nova_accel.host import parents
from nova_accel.host import pci
from nova_accel.host import reset
from nova_accel.host import tree as trees
from nova_accel.host import usage
from nova_accel.host import vfio

#: From entries to what a machine, as it was read, offers by them.
Decide = collections.abc.Callable[
    [collections.abc.Sequence[entries_.Entry]], model.Host]


def parse(texts: collections.abc.Iterable[str],
          option: str = '[nova_accel] device_spec',
          ) -> tuple[list[entries_.Entry], list[errors.EntryError]]:
    """Every usable entry of an option, of the kinds that are installed."""
    return entries_.parse_all(texts, loader.load(), option)


def parse_links(path: str) -> tuple[model.Links, list[errors.LinksError]]:
    """What ``link_domains`` says, nothing where it cannot be used."""
    try:
        return links_.load(path), []
    except errors.LinksError as error:
        return model.Links(), [error]


def read(tree: trees.Tree,
         entries: collections.abc.Sequence[entries_.Entry] = (),
         *args, **kwargs) -> model.Host:
    """Read what is there and decide what of it is offered.

    :param entries: the parsed ``device_spec``
    :param args: the others as for :func:`look`, as are ``kwargs``
    """
    return look(tree, *args, **kwargs)(entries)


def look(tree: trees.Tree,
         foreign: collections.abc.Sequence[entries_.Entry] = (),
         kinds: offer.Enumerators | None = None,
         quarantined: collections.abc.Mapping[model.PciAddress, str] = {},
         links: model.Links | None = None,
         held: collections.abc.Callable[[], holding.Held] = dict,
         allow_unsafe_host: bool = False) -> Decide:
    """Read what is there once, to decide by any entries what is offered.

    :param foreign: entries by which another program claims devices
    :param kinds: opened on this tree; those that are installed, if none are
        given
    :param quarantined: why nobody may have a function
    :param links: what ``link_domains`` says
    :param held: what domains hold, as in :func:`offer.offer`
    :param allow_unsafe_host: whether hazards of the host are accepted
    """
    if kinds is None:
        kinds = loader.open_all(tree)
    functions, problems = pci.read(tree)
    uses, unknown = usage.read(tree)
    functions = [dataclasses.replace(function, use=uses[function.address])
                 if function.address in uses else function
                 for function in netdevs.name(tree, functions)]
    functions.extend(pci.read_unreadable(tree, functions))
    functions.extend(parents.read(tree))
    links, strangers = links_.read(tree, functions, links or model.Links())
    numa_nodes, hazards = pci.read_numa_nodes(tree), vfio.hazards(tree)

    def decide(entries: collections.abc.Sequence[entries_.Entry],
               ) -> model.Host:
        host = offer.offer(
            functions, entries, kinds, foreign,
            [*problems, *unknown, *strangers], {
                function.address: (quarantined[function.address],
                                   reset.remedy(function))
                for function in functions if function.address in quarantined},
            held, hazards, allow_unsafe_host)
        return dataclasses.replace(host, numa_nodes=numa_nodes, links=links)
    return decide
