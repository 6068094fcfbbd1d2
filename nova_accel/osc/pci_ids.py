# SPDX-License-Identifier: Apache-2.0
"""Names of PCI devices, from the ``pci.ids`` file of the distribution.

Source: the comment at the head of that file. Debian has it in the package
pci.ids, Red Hat and others in hwdata. The library hwdata is under the
GPL, and knows one of the paths.
"""

import collections.abc
import functools
import re

_FILES = ('/usr/share/misc/pci.ids', '/usr/share/hwdata/pci.ids')
_LINE = re.compile(r'(\t?)([0-9a-f]{4})  (.+)')


def name(ids: str) -> str:
    """Return the name of a device, the ids themselves if it is not known.

    :param ids: vendor and product id, ``10de:2330``
    """
    return _names().get(ids, ids)


@functools.cache
def _names() -> dict[str, str]:
    for path in _FILES:
        try:
            with open(path, encoding='utf-8', errors='replace') as file:
                return dict(parse(file))
        except OSError:
            continue
    return {}


def parse(lines: collections.abc.Iterable[str],
          ) -> collections.abc.Iterator[tuple[str, str]]:
    """Yield the ids and the name of each device of a ``pci.ids`` file."""
    vendor = ''
    for line in lines:
        if line.startswith('C '):
            # Classes follow.
            return
        match = _LINE.match(line)
        if match and not match[1]:
            vendor = match[2]
        elif match:
            yield f'{vendor}:{match[2]}', match[3].strip()
