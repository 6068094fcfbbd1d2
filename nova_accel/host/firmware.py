# SPDX-License-Identifier: Apache-2.0
"""Read the firmware versions that sysfs shows of a function.

The driver of the host shows them, so there are none while a vfio driver is
bound. Versions of firmware that the driver itself loads from the disk of the
host, such as amdgpu's ``fw_version``, are left out: they do not stay in the
device.
"""

import collections.abc
import fnmatch

from nova_accel.host import tree as trees

#: Files below a function's directory, by source: a word of capital letters,
#: which names of traits contain. Sources: drivers/nvme/host/sysfs.c,
#: Documentation/ABI/stable/sysfs-class-infiniband,
#: drivers/gpu/drm/amd/amdgpu/amdgpu_atombios.c,
#: Documentation/ABI/testing/sysfs-platform-dfl-fme (static FPGA region).
_FILES = {
    'NVME': ('nvme', '*', 'firmware_rev'),
    'INFINIBAND': ('infiniband', '*', 'fw_ver'),
    'VBIOS': ('vbios_version',),
    'FPGA': ('fpga_region', '*', 'dfl-fme.*', 'bitstream_id'),
}


def read(tree: trees.Tree, path: str) -> tuple[tuple[str, str], ...]:
    """Return the versions of a function by source; those that are shown.

    :param path: the function's directory
    """
    shown = ((source, (tree.text(file) or '').strip())
             for source, parts in _FILES.items()
             for file in _matching(tree, path, *parts))
    # The first of several: they are of the same firmware.
    return tuple({source: text for source, text in reversed([*shown])
                  if text}.items())


def _matching(tree: trees.Tree, path: str, first: str, *rest: str,
              ) -> collections.abc.Iterator[str]:
    """Yield the paths that match a pattern for each of their parts."""
    for name in (fnmatch.filter(tree.names(path), first) if '*' in first
                 else [first]):
        if rest:
            yield from _matching(tree, f'{path}/{name}', *rest)
        else:
            yield f'{path}/{name}'
