# SPDX-License-Identifier: Apache-2.0
"""PCI functions offered without preparation: whole cards and their VFs.

Source for VFs that need a vGPU type: see :mod:`nova_accel.host.kinds.vgpu`.
"""

import collections.abc
import typing

from nova_accel.core import kind
from nova_accel.core import model
from nova_accel.host import pci
from nova_accel.host import tree as trees
from nova_accel.host.kinds import vgpu


@typing.final
class Functions(kind.Enumerator):
    """Enumerate each function with the others of its IOMMU group."""

    def __init__(self, tree: trees.Tree):
        self._tree = tree

    def pools(self, function: model.Function, entry: kind.Entry,
              machine: kind.Machine) -> collections.abc.Iterator[kind.Pool]:
        # With managed off, the operator may have set the vGPU type.
        if entry.managed is not False and self._tree.has(
                f'{pci.path(self._tree, function.address)}/{vgpu.CREATABLE}'):
            raise kind.Refused(
                'it is a VF for vGPUs, and a guest cannot use it without a '
                'vGPU type', f'add {vgpu.TYPE} to its entry; or set the type '
                'yourself, and write "managed": "no"')
        yield kind.Pool((machine.bundle(function),))


KIND = kind.Kind(open=Functions)
