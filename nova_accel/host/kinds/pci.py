# SPDX-License-Identifier: Apache-2.0
"""PCI functions given away as they are: whole cards, and their VFs."""

import collections.abc

from nova_accel.core import kind
from nova_accel.core import model
from nova_accel.host import tree as trees


class Functions:
    """An Enumerator: each function, with what has to travel along."""

    def __init__(self, tree: trees.Tree):
        pass

    def pools(self, function: model.Function, entry: kind.Entry,
              machine: kind.Machine) -> collections.abc.Iterator[kind.Pool]:
        yield kind.Pool((machine.bundle(function),))


KIND = kind.Kind(open=Functions)
