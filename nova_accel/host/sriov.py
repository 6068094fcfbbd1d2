# SPDX-License-Identifier: Apache-2.0
"""Change the number of virtual functions of a card.

Source: Documentation/ABI/testing/sysfs-bus-pci (``sriov_numvfs``).
"""

import contextlib

from nova_accel.core.device_spec import virtual_functions
from nova_accel.host import operate
from nova_accel.host import pci
from nova_accel.host import tree as trees


def change(tree: trees.Tree, wanted: virtual_functions.Change) -> int:
    """Set the number of virtual functions of a card.

    :returns: how many the card has now; some drivers (Intel's QAT) enable the
        maximum whatever number is written
    :raises OSError: if the driver or the kernel refuses that number; the
        previous number is set again if possible
    :raises errors.AssignmentError: if the tree is a recording
    """
    machine, card = operate.on(tree), str(wanted.card)
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
