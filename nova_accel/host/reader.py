# SPDX-License-Identifier: Apache-2.0
"""A machine read into a Host."""

import collections.abc
import dataclasses

from nova_accel.core import entry as entries_
from nova_accel.core import model
from nova_accel.core import offer
from nova_accel.host import pci
from nova_accel.host import tree as trees
from nova_accel.host import usage


def read(tree: trees.Tree,
         entries: collections.abc.Sequence[entries_.Entry] = (),
         foreign: collections.abc.Sequence[entries_.Entry] = (),
         ) -> model.Host:
    """Read what is there and decide what of it is offered.

    :param entries: the parsed ``device_spec``
    :param foreign: entries by which another program claims devices
    """
    functions, problems = pci.read(tree)
    uses = usage.read(tree)
    functions = [dataclasses.replace(function, use=uses[function.address])
                 if function.address in uses else function
                 for function in functions]
    functions.extend(pci.read_unreadable(tree, functions))
    host = offer.offer(functions, entries, foreign, problems)
    return dataclasses.replace(host, numa_nodes=pci.read_numa_nodes(tree))
