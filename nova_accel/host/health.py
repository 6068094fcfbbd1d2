# SPDX-License-Identifier: Apache-2.0
"""Read what sysfs tells of the health of functions.

Sources: Documentation/ABI/testing/sysfs-bus-pci-devices-aer (counters; a
function without Advanced Error Reporting has none), drivers/pci/pci-sysfs.c
(``current_link_width``, ``current_link_speed`` and their maxima).
"""

import collections.abc
import re

from nova_accel.core import health
from nova_accel.core import model
from nova_accel.host import pci
from nova_accel.host import tree as trees

_COUNTERS = {
    health.Severity.FATAL: ('aer_dev_fatal', 'TOTAL_ERR_FATAL'),
    health.Severity.NONFATAL: ('aer_dev_nonfatal', 'TOTAL_ERR_NONFATAL'),
    health.Severity.CORRECTABLE: ('aer_dev_correctable', 'TOTAL_ERR_COR'),
}


def read(tree: trees.Tree, function: model.Function, vfs: int,
         ) -> health.Facts:
    """Return the health of a function.

    It reads the configuration space, which blocks for as long as the kernel
    resets the function.

    :param vfs: how many virtual functions of it are there
    """
    return health.Facts(
        not isinstance(tree, trees.Directory)
        or pci.is_alive(tree, function.address),
        errors(tree, function.address),
        # The link of a virtual function is that of its card.
        () if function.physfn else tuple(links(tree, function)),
        max(0, function.num_vfs - vfs))


def errors(tree: trees.Tree, address: model.Address) -> health.Errors:
    """Return the errors that the kernel has counted for a function."""
    found = {}
    for severity, (name, total) in _COUNTERS.items():
        text = tree.text(f'{pci.path(tree, address)}/{name}') or ''
        if match := re.search(rf'^{total} (\d{{1,20}})$', text, re.MULTILINE):
            found[severity] = int(match[1])
    return found


def links(tree: trees.Tree, function: model.Function,
          ) -> collections.abc.Iterator[health.Link]:
    """Yield the links from a function to the root of the hierarchy.

    A link is between a root port or the downstream port of a switch, and the
    upstream port of a switch or the function.
    """
    path = pci.path(tree, function.address)
    ends = [*function.location.ports, str(function.address)]
    for upper, lower in zip(ends[::2], ends[1::2], strict=False):
        at = path.partition(f'/{lower}')[0] + f'/{lower}'
        above = at.removesuffix(f'/{lower}')
        width = pci.lanes(tree, f'{at}/current_link_width')
        widths = [lanes for place in (at, above) if (
            lanes := pci.lanes(tree, f'{place}/max_link_width'))]
        speeds = [speed for place in (at, above) if (
            speed := pci.speed(tree, f'{place}/max_link_speed'))]
        if width and widths and above.endswith(f'/{upper}'):
            yield health.Link(lower, width, min(widths),
                              pci.speed(tree, f'{at}/current_link_speed'),
                              min(speeds, default=None))
