# SPDX-License-Identifier: Apache-2.0
"""Choose who performs the operations on the devices of a Tree.

Only root may write to the kernel's own sysfs:
:mod:`nova_accel.host.privileged` does that. A copy of a sysfs is for trials;
it is written to with the rights of the calling process.
"""

import collections.abc
import typing

from nova_accel.host import commands
from nova_accel.host import operations
from nova_accel.host import tree as trees


class Operations(typing.Protocol):
    """What :class:`nova_accel.host.operations.Operations` can do.

    The module :mod:`nova_accel.host.privileged` can do the same.
    """

    def create_mdev(self, parent: str, mdev_type: str, address: str,
                    ) -> None: ...

    def remove_mdev(self, address: str) -> None: ...

    def set_vgpu_type(self, function: str, number: int) -> None: ...

    def set_num_vfs(self, card: str, number: int) -> None: ...

    def reset_function(self, address: str) -> None: ...

    def set_reset_methods(self, address: str,
                          methods: collections.abc.Iterable[str],
                          ) -> None: ...

    def reset_behind(self, bridge: str) -> None: ...

    def reset_by_vfio(self, addresses: collections.abc.Iterable[str],
                      ) -> None: ...

    def unbind_driver(self, address: str) -> None: ...

    def probe_driver(self, address: str) -> None: ...

    def program_by_manager(self, manager: str, bitstream: str) -> None: ...

    def program_by_command(self, template: collections.abc.Sequence[str],
                           bitstream: str, address: str, region: str,
                           timeout: float) -> commands.Ended: ...

    def clean(self, definition: str, address: str, region: str,
              ) -> tuple[str, int | None, bytes]: ...

    def probe_firmware(self, definition: str, address: str) -> str: ...

    def run_fabric_manager(self, definition: str, operation: str,
                           partitions: collections.abc.Collection[int] = (),
                           ) -> commands.Ended: ...

    def read_modules(self, definition: str) -> commands.Ended: ...


def on(tree: trees.Tree) -> Operations:
    """Return the operations on the devices of a Tree.

    :raises errors.AssignmentError: if the Tree is a recording
    """
    sysfs = trees.mount(tree)
    if trees.is_live(tree):
        # Imported here, as the command line works without oslo.privsep.
        from nova_accel.host import privileged
        return privileged
    return operations.Operations(sysfs)


def beside(tree: trees.Tree) -> Operations:
    """Return operations that do not touch the devices of a Tree.

    Other than those of :func:`on`, a recording has them: a test can run a
    fabric manager beside it.
    """
    return (on(tree) if isinstance(tree, trees.Directory)
            else operations.Operations(''))
