# SPDX-License-Identifier: Apache-2.0
"""Virtual functions, as many as an entry says.

Source: Documentation/ABI/testing/sysfs-bus-pci (``sriov_numvfs``).
"""

import contextlib

from nova_accel.core.device_spec import virtual_functions
from nova_accel.host import operations
from nova_accel.host import pci
from nova_accel.host import tree as trees


def change(tree: trees.Tree, wanted: virtual_functions.Change) -> int:
    """Bring a card to a number of virtual functions.

    :returns: how many it has then; some drivers (Intel's QAT) give all that
        the card can have, whatever is asked
    :raises OSError: if its driver, or the kernel, has not that many; then
        there are as many as before, if that can be had
    :raises errors.AssignmentError: if the tree is no machine
    """
    machine, card = operations.on(tree), str(wanted.card)
    if wanted.before:
        machine.set_num_vfs(card, 0)
    try:
        machine.set_num_vfs(card, wanted.number)
    except OSError:
        if wanted.before:
            with contextlib.suppress(OSError):
                machine.set_num_vfs(card, wanted.before)
        raise
    text = tree.text(f'{pci.path(tree, wanted.card)}/sriov_numvfs') or ''
    return int(text) if text.strip().isdecimal() else wanted.number
