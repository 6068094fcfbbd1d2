# SPDX-License-Identifier: Apache-2.0
"""Each Region's place and units, as a short string for the scheduler.

It goes through ComputeNode.stats, a TEXT column that it shares with others,
so its size is bounded: 64 Regions fit in :data:`MAX_BYTES` whole; of more,
first the lesser facts are left out, then Regions.
"""

import collections.abc
import json

from nova_accel.core import model
from nova_accel.core import providers

#: The key in ComputeNode.stats.
KEY = 'nova_accel'
#: Bytes of the string; it is ASCII.
MAX_BYTES = 8192

# A newer compute may add to the end of a row or beside the rows, without
# changing this; what an older scheduler cannot read otherwise gets a new one.
_VERSION = 1


def dumps(offered: collections.abc.Iterable[providers.Offered],
          held: collections.abc.Mapping[str, int] = {}) -> str:
    """The locations of a Host's Regions, and what is left of them.

    :param held: units by provider
    :returns: ``{"v":1,"at":{"<provider uuid>":[node,root,switch,total,free],
        ...}}``
    """
    rows = {item.uuid: [item.device.location.numa_node,
                        item.device.location.root,
                        item.device.location.switch,
                        item.region.total,
                        item.region.total - held.get(item.uuid, 0)]
            for item in offered}
    text = _text(rows)
    if len(text) > MAX_BYTES:
        rows = {uuid: row[:1] for uuid, row in rows.items()}
        text = _text(rows)
    while len(text) > MAX_BYTES:
        excess = len(text) - MAX_BYTES
        row_size = len(text) // len(rows)
        for uuid in list(rows)[-(excess // row_size + 1):]:
            del rows[uuid]
        text = _text(rows)
    return text


def loads(text: object) -> dict[str, model.Location]:
    """The locations by provider; what cannot be understood is left out.

    :param text: whatever the compute node's stats hold under :data:`KEY`
    """
    locations = {}
    for uuid, row in _rows(text):
        if _is_node(row[0]):
            root, switch, *_later = [*row[1:], None, None]
            locations[uuid] = model.Location(
                row[0], root if isinstance(root, str) else '',
                switch=switch if isinstance(switch, str) else None)
    return locations


def loads_units(text: object) -> dict[str, tuple[int, int]]:
    """Total and free units by provider, as the host last said."""
    return {uuid: (row[3], row[4]) for uuid, row in _rows(text)
            if len(row) > 4 and _is_count(row[3]) and _is_count(row[4])}


def _rows(text: object) -> list[tuple[str, list]]:
    try:
        rows = json.loads(text)['at'].items()
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError):
        return []
    return [(uuid, row) for uuid, row in rows
            if isinstance(row, list) and row]


def _text(rows) -> str:
    return json.dumps({'v': _VERSION, 'at': rows}, separators=(',', ':'))


def _is_node(value: object) -> bool:
    return value is None or _is_count(value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
