# SPDX-License-Identifier: Apache-2.0
"""What can be wrong, said so that a person can mend it.

Every error names the thing, the reason and, where there is one, the remedy.
"""

import collections.abc
import os
import re

# What names a server, a host, a path or an address; and what comes from
# outside, which can.
_NAMES = re.compile('|'.join((
    # Quotations; one that was cut ends with an ellipsis.
    r'''(?<!\w)'(?:[^'\\…]|\\.)*(?:['…]|$)''',
    r'''(?<!\w)"(?:[^"\\…]|\\.)*(?:["…]|$)''',
    # Paths and URLs, but for "Input/output error"; and resource providers.
    r'(?<!\S)\S*(?:(?<![A-Za-z])/|/\S*/|_accel_)\S*',
    # Uuids, PCI addresses, and libvirt's domains.
    r'[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}',
    r'(?:[0-9a-f]{4,}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]',
    r'\binstance-[0-9a-f]{8}\b',
    # Addresses and names of hosts.
    r'\b\d+(?:\.\d+){3}\b', r'\b[\w-]+(?:\.[\w-]+)+\.[a-z]{2,}\b')),
    re.IGNORECASE)

# Nova keeps 255 characters of a fault.
_MAX_PUBLIC = 1000

_PLAIN = re.compile(r'[\w:.-]{1,80}', re.ASCII)

#: Longest piece of outside text that a message repeats, in characters.
QUOTE_LIMIT = 80


def quote(value: object) -> str:
    """Outside text made fit for one line of a log.

    :param value: anything that came from a file, a flavor or a request
    :returns: its ``repr`` (so a newline stays visible and harmless), cut to
        :data:`QUOTE_LIMIT` characters
    """
    try:
        # Cut before repr as well: the value may be megabytes long.
        text = repr(value[:QUOTE_LIMIT + 1] if isinstance(value, str)
                    else value)
    except ValueError:
        # An integer of more digits than Python writes, or with one inside.
        text = f'<very long {type(value).__name__}>'
    return text if len(text) <= QUOTE_LIMIT else text[:QUOTE_LIMIT - 1] + '…'


def plain(text: str) -> str:
    """A name as it is where it can do no harm, otherwise as a quotation."""
    return text if _PLAIN.fullmatch(text) else quote(text)


def path(name: str | os.PathLike) -> str:
    """A path as it is where it is one line, otherwise as a quotation."""
    text = os.fspath(name)
    return text if text.isprintable() else quote(text)


def public(text: str, names: collections.abc.Iterable[str] = ()) -> str:
    """A text as whoever owns a server may read it.

    :param names: of hosts, which a text does not show to be names
    :returns: with an ellipsis for each name of a server, a host, a path or
        an address, and for what is quoted
    """
    text = _NAMES.sub('…', text[:_MAX_PUBLIC])
    for name in filter(None, names):
        text = re.sub(rf'(?<!\w){re.escape(name)}(?!\w)', '…', text)
    return text


class AccelError(Exception):
    """The root of everything that nova_accel raises on purpose.

    :param thing: what it is about, e.g. ``profile 'a100' in a100.yaml``
    :param reason: what is wrong with it
    :param remedy: what a person can do about it, or ''
    """

    def __init__(self, thing: str, reason: str, remedy: str = ''):
        self.thing = thing
        self.reason = reason
        self.remedy = remedy
        text = f'{thing}: {reason}'
        super().__init__(f'{text}; {remedy}' if remedy else text)


class EntryError(AccelError):
    """A ``[nova_accel] device_spec`` entry that cannot be used."""


class ProfileError(AccelError):
    """A Profile, or a file of Profiles, that cannot be used.

    :ivar profile: the name of the one document of a file that this is about;
        None where it is about more, or the document has no name
    """

    profile: str | None = None


class LinksError(AccelError):
    """A ``[nova_accel] link_domains`` file that cannot be used."""


class TreeError(AccelError):
    """A ``sysfs_root`` that is no recording and no sysfs tree."""


class DeviceError(AccelError):
    """A device that cannot be made what its entry says."""


class AssignmentError(AccelError):
    """Devices that were promised to a server and cannot be given to it."""


class TakenError(AssignmentError):
    """Devices that were promised to a server and that another one has."""
