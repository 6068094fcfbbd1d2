# SPDX-License-Identifier: Apache-2.0
"""The places and units of a host's Regions as a string for the scheduler.

The string is in ComputeNode.stats, a TEXT column of 65,535 bytes that has
other content too. So its size is bounded: a thousand Regions fit in
:data:`MAX_BYTES`. With more, first details are left out, then Regions. It has
no provider uuids: they are computed from the compute node's uuid, the address
of the card and the name of the Region.
"""

import base64
import bisect
import collections
import collections.abc
import dataclasses
import functools
import json
import threading
import zlib

from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.placement import inventory

#: The key in ComputeNode.stats.
KEY = 'nova_accel'
#: Maximal size of the string, which is ASCII.
MAX_BYTES = 16384
#: A longer string is compressed. That of a host with eight cards is not.
MAX_READABLE = 2048
#: Maximal size of a string after decompression.
MAX_PLAIN = 1 << 18

# Later versions may append to rows and add tables without a new number. A
# change that older schedulers cannot read needs a new number.
_VERSION = 2

# The prefix of a compressed string; no JSON starts with it.
_PACKED = 'zlib:'

# More units than Placement can count. A wrong number of one host must not
# affect the other hosts of a request.
_TOO_MANY = 1 << 31

# Maximal memory for the Summaries of all hosts, in bytes: enough for about ten
# thousand hosts of eight cards. A Region, like a set, counts as one item.
_MAX_MEMORY = 1 << 28
_ITEM_SIZE = 256

_NONE = model.Links()

#: A Region of a card: the number of its name, total and free units.
_Region = tuple[int | None, int, int]
#: The JSON of a string, of which only the top is certain to be an object.
_Tables = collections.abc.Mapping[str, object]


@dataclasses.dataclass(frozen=True)
class Summary:
    """The Regions of a host, by provider; shared, so do not modify it.

    :param places: the place of each Region's Device
    :param units: total and free units, as the host last reported
    :param links: the link domains of the host
    :param cpuless_nodes: as in :class:`nova_accel.core.model.Host`
    """

    places: dict[str, model.Place] = dataclasses.field(
        default_factory=dict)
    units: dict[str, tuple[int, int]] = dataclasses.field(
        default_factory=dict)
    links: model.Links = _NONE
    cpuless_nodes: dict[int, int] = dataclasses.field(default_factory=dict)


def dumps(offered: collections.abc.Iterable[inventory.Offered],
          held: collections.abc.Mapping[str, int] = {},
          links: model.Links = _NONE,
          cpuless_nodes: collections.abc.Mapping[int, int] = {}) -> str:
    """Return the string for a Host's Regions.

    :param held: units that are held, by provider
    :param links, cpuless_nodes: of the Host
    :returns: ASCII: JSON, or a compressed form of long JSON
    """
    items = tuple(offered)
    whole = functools.partial(_dumps, held=held, links=links,
                              cpuless_nodes=cpuless_nodes)
    short = functools.partial(_dumps, held=held)
    shortest = functools.partial(short, coarse=True)
    for write in (whole, functools.partial(whole, coarse=True), short,
                  shortest):
        if text := _fitting(write(items)):
            return text
    # The size need not grow with each item, but bisect has checked that the
    # result fits.
    count = bisect.bisect_left(
        range(1, len(items)), True,
        key=lambda count: not _fitting(shortest(items[:count])))
    return _fitting(shortest(items[:count]))


def loads(text: object, root: object) -> Summary:
    """Read the string that :func:`dumps` wrote, without what is malformed.

    :param text: the value of :data:`KEY` in the compute node's stats; ignored
        if it is longer than :data:`MAX_BYTES`
    :param root: uuid of the compute node's provider
    """
    if not isinstance(text, str) or not isinstance(root, str) or (
            len(text) > MAX_BYTES):
        return Summary()
    return _remembered.read(text, root)


def _dumps(items: collections.abc.Iterable[inventory.Offered],
           held: collections.abc.Mapping[str, int],
           links: model.Links = _NONE,
           cpuless_nodes: collections.abc.Mapping[int, int] = {},
           coarse: bool = False) -> str:
    """Return the JSON text, which can be too long.

    :param coarse: whether to reduce places to the NUMA node
    """
    places: dict[tuple[int | str | None, ...], int] = {}
    names: dict[str, int] = {}
    cards: dict[str, tuple[str, int, list[_Region]]] = {}
    for item in items:
        address = str(item.device.address)
        place = model.Place.at(item.device.location, address).parts
        if coarse:
            place = place[:1]
        _address, _place, regions = cards.setdefault(
            address, (address, places.setdefault(place, len(places)), []))
        name = None if len(item.device.regions) == 1 else names.setdefault(
            item.region.name, len(names))
        regions.append((name, item.region.total,
                        max(0, item.region.total - held.get(item.uuid, 0))))
    numbers = {address: number for number, address in enumerate(cards)}
    tables = {'places': list(places), 'names': list(names),
              'cards': list(cards.values()),
              'partitions': _sets(links.partitions, numbers),
              'islands': _sets(links.islands, numbers),
              'faulty': _sets([links.faulty] * bool(links.faulty), numbers),
              'cpuless_nodes': list(cpuless_nodes.items())}
    return json.dumps({'v': _VERSION, **{
        name: table for name, table in tables.items() if table}},
        separators=(',', ':'))


def _sets(sets: collections.abc.Iterable[frozenset[str]],
          numbers: collections.abc.Mapping[str, int]) -> list[list[int | str]]:
    # Keep cards without Regions: without them a partition would be another.
    return [[numbers.get(address, address) for address in sorted(addresses)]
            for addresses in sets]


def _fitting(plain: str) -> str:
    """Return the string for ComputeNode.stats, '' if it is too long."""
    if len(plain) <= MAX_READABLE:
        return plain
    text = _PACKED + base64.b64encode(zlib.compress(plain.encode())).decode()
    return text if len(plain) <= MAX_PLAIN and len(text) <= MAX_BYTES else ''


def _loads(text: str, root: str) -> Summary:
    try:
        tables = json.loads(_unpacked(text))
    except (ValueError, RecursionError, zlib.error):
        return Summary()
    return _summary(tables, root) if isinstance(tables, dict) else Summary()


class _Remembered:
    """A cache of the last Summary of each host.

    It has one text per host. If all are too large together, the least
    recently used are dropped.

    :param most: maximal memory in bytes, approximately
    """

    def __init__(self, most: int):
        self._most = most
        self._left = most
        self._hosts: collections.OrderedDict[
            str, tuple[str, Summary, int]] = collections.OrderedDict()
        self._lock = threading.Lock()

    def read(self, text: str, root: str) -> Summary:
        """Return the Summary of a text, parsed if it is new."""
        with self._lock:
            before, read, size = self._hosts.pop(root, ('', Summary(), 0))
            if text != before:
                self._left += size
                read = _loads(text, root)
                size = len(text) + _ITEM_SIZE * _count(read)
                self._left -= size
            self._hosts[root] = text, read, size
            while self._left < 0:
                self._left += self._hosts.popitem(last=False)[1][2]
            return read


def _count(read: Summary) -> int:
    """Count Regions, sets and members of sets, and NUMA nodes."""
    return len(read.units) + len(read.cpuless_nodes) + len(
        read.links.faulty) + sum(
        1 + len(members) for sets in (read.links.partitions,
                                      read.links.islands)
        for members in sets)


_remembered = _Remembered(_MAX_MEMORY)


def _unpacked(text: str) -> bytes | str:
    """Return the JSON of a string.

    :raises ValueError, zlib.error: if it is damaged or its content too long
    """
    if not text.startswith(_PACKED):
        return text
    unpacker = zlib.decompressobj()
    plain = unpacker.decompress(
        base64.b64decode(text.removeprefix(_PACKED), validate=True),
        MAX_PLAIN + 1)
    if not unpacker.eof:
        raise ValueError('it is cut off, or too long')
    return plain


def _summary(tables: _Tables, root: str) -> Summary:
    places: dict[str, model.Place] = {}
    units: dict[str, tuple[int, int]] = {}
    rows, cards = _table(tables, 'places'), _table(tables, 'cards')
    names = {number: name for number, name in _table(tables, 'names').items()
             if isinstance(name, str)}
    for card in cards.values():
        match card:
            case [str(address), int(number), list(regions),
                  *_later] if address:
                place = _place(rows.get(number), address)
            case _:
                continue
        if place is None:
            continue
        for region in regions:
            match region:
                case [int() | None as name, int(total), int(free),
                      *_later] if max(abs(total), abs(free)) < _TOO_MANY:
                    provider = _provider(root, address, name, names)
                    if provider:
                        places[provider] = place
                        units[provider] = total, free
    addresses = {number: card[0] for number, card in cards.items()
                 if isinstance(card, list) and card}
    partitions, islands, faulty = (
        tuple(_named(_table(tables, name).values(), addresses))
        for name in ('partitions', 'islands', 'faulty'))
    return Summary(places, units, model.Links(
        partitions, islands, frozenset[str]().union(*faulty)),
        dict(_pairs(_table(tables, 'cpuless_nodes').values())))


def _pairs(rows: collections.abc.Iterable[object],
           ) -> collections.abc.Iterator[tuple[int, int]]:
    for row in rows:
        match row:
            case [int(node), int(nearest), *_later]:
                yield node, nearest


def _table(tables: _Tables, name: str) -> dict[int, object]:
    table = tables.get(name)
    return dict(enumerate(table)) if isinstance(table, list) else {}


def _place(row: object, address: str) -> model.Place | None:
    match row:
        case [int() | None as node, *inner]:
            root, switch = (part if isinstance(part, str) else None
                            for part in [*inner, None, None][:2])
            return model.Place(node, root, switch, address)
    return None


def _provider(root: str, address: str, number: int | None,
              names: collections.abc.Mapping[int, str]) -> str:
    """Return the uuid of a Region's provider, '' if data is malformed."""
    if number is not None and number not in names:
        return ''
    try:
        return naming.provider_uuid(
            root, address, None if number is None else names[number])
    except ValueError:
        # The root is no uuid, or the text has invalid characters.
        return ''


def _named(sets: collections.abc.Iterable[object],
           addresses: collections.abc.Mapping[int, object],
           ) -> collections.abc.Iterator[frozenset[str]]:
    """Yield the sets whose members are all known, and no partial sets."""
    for members in sets:
        if not isinstance(members, list):
            continue
        named = [addresses.get(member) if isinstance(member, int) else member
                 for member in members]
        known = [address for address in named
                 if address and isinstance(address, str)]
        if known and len(known) == len(named):
            yield frozenset(known)
