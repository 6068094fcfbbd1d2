# SPDX-License-Identifier: Apache-2.0
"""PCI functions given away as they are: whole cards, and their VFs.

Source, for VFs that are of no use as they are: see
:mod:`nova_accel.host.kinds.vgpu`.
"""

import collections.abc

from nova_accel.core import kind
from nova_accel.core import model
from nova_accel.host import pci
from nova_accel.host import tree as trees
from nova_accel.host.kinds import vgpu


class Functions:
    """An Enumerator: each function, with what has to travel along."""

    def __init__(self, tree: trees.Tree):
        self._tree = tree

    def pools(self, function: model.Function, entry: kind.Entry,
              machine: kind.Machine) -> collections.abc.Iterator[kind.Pool]:
        # Where its driver stays, somebody else may have set its type.
        if entry.managed is not False and self._tree.has(
                f'{pci.path(self._tree, function.address)}/{vgpu.CREATABLE}'):
            raise kind.Refused(
                'it is there for vGPUs, and without a type a guest can do '
                'nothing with it', f'name one as {vgpu.TYPE} in its entry; '
                'or set it yourself, and write "managed": "no"')
        yield kind.Pool((machine.bundle(function),))


KIND = kind.Kind(open=Functions)
