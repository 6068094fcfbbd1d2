# SPDX-License-Identifier: Apache-2.0
"""Names of the network ports of PCI functions.

Source: Documentation/ABI/testing/sysfs-class-net; its links lead to
``.../<the function>/net/<name>``.
"""

import collections
import collections.abc
import dataclasses
import posixpath

from nova_accel.core import model
from nova_accel.host import pci
from nova_accel.host import tree as trees

NET = 'sys/class/net'


def name(tree: trees.Tree,
         functions: collections.abc.Iterable[model.Function],
         ) -> list[model.Function]:
    """Return the functions with the names of their and their card's ports."""
    ports: dict[model.Address | None, list[str]] = collections.defaultdict(
        list)
    for port in tree.names(NET):
        path = trees.follow(tree, f'{NET}/{port}')
        owner = posixpath.basename(posixpath.dirname(posixpath.dirname(path)))
        for address in pci.addresses([owner]):
            ports[address].append(port)
    return [dataclasses.replace(function, netdevs=names) if (names := (
        *ports.get(function.address, ()), *ports.get(function.physfn, ())))
        else function for function in functions]
