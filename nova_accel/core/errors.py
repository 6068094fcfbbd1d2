# SPDX-License-Identifier: Apache-2.0
"""Errors that name the thing, the reason and, if there is one, the remedy."""

import collections.abc
import os
import re

# Names of servers, hosts, paths and addresses, and quoted outside text, which
# can contain such names.
_NAMES = re.compile('|'.join((
    # Quotations; one that was cut ends with an ellipsis.
    r'''(?<!\w)'(?:[^'\\…]|\\.)*(?:['…]|$)''',
    r'''(?<!\w)"(?:[^"\\…]|\\.)*(?:["…]|$)''',
    # Paths and URLs, except "Input/output error"; and resource providers.
    r'(?<!\S)\S*(?:(?<![A-Za-z])/|/\S*/|_accel_)\S*',
    # Uuids, PCI addresses, and names of libvirt domains.
    r'[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}',
    r'(?:[0-9a-f]{4,}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]',
    r'\binstance-[0-9a-f]{8}\b',
    # IP addresses and names of hosts.
    r'\b\d+(?:\.\d+){3}\b', r'\b[\w-]+(?:\.[\w-]+)+\.[a-z]{2,}\b')),
    re.IGNORECASE)

# Nova keeps 255 characters of a fault.
_MAX_PUBLIC = 1000

_PLAIN = re.compile(r'[\w:.-]{1,80}', re.ASCII)

#: Longest piece of outside text that a message repeats, in characters.
QUOTE_LIMIT = 80


def quote(value: object) -> str:
    """Return outside text as a quotation for one line of a log.

    :param value: anything that came from a file, a flavor or a request
    :returns: its ``repr``, which escapes newlines, cut to
        :data:`QUOTE_LIMIT` characters
    """
    try:
        # Cut before repr as well: the value may be megabytes long.
        text = repr(value[:QUOTE_LIMIT + 1] if isinstance(value, str)
                    else value)
    except ValueError:
        # It is, or contains, an integer with too many digits for Python.
        text = f'<very long {type(value).__name__}>'
    return text if len(text) <= QUOTE_LIMIT else text[:QUOTE_LIMIT - 1] + '…'


def plain(text: str) -> str:
    """Return a name as it is if it is harmless, otherwise quoted."""
    return text if _PLAIN.fullmatch(text) else quote(text)


def path(name: str | os.PathLike[str]) -> str:
    """Return a path as it is if it is printable, otherwise quoted."""
    text = os.fspath(name)
    return text if text.isprintable() else quote(text)


def count(number: int, one: str, several: str = '') -> str:
    """Return ``1 host``, ``2 hosts``.

    :param one: the word for one thing
    :param several: the word for several, default ``one`` with an s
    """
    return f'{number} {one if number == 1 else several or f"{one}s"}'


def public(text: str, names: collections.abc.Iterable[str] = ()) -> str:
    """Return a text in the form that the owner of a server may read.

    :param names: host names to remove, which no pattern can recognise
    :returns: the text with an ellipsis for each name of a server, a host, a
        path or an address, and for each quotation
    """
    text = _NAMES.sub('…', text[:_MAX_PUBLIC])
    for name in filter(None, names):
        text = re.sub(rf'(?<!\w){re.escape(name)}(?!\w)', '…', text)
    return text


class AccelError(Exception):
    """The base class of nova_accel's errors.

    :param thing: what the error is about, e.g. ``profile 'a100' in a100.yaml``
    :param reason: what is wrong with it
    :param remedy: what a person can do about it, or ''
    :ivar for_owner: what the owner of a server is told instead of thing and
        reason, or ''
    """

    for_owner = ''

    def __init__(self, thing: str, reason: str, remedy: str = '') -> None:
        self.thing = thing
        self.reason = reason
        self.remedy = remedy
        text = f'{thing}: {reason}'
        super().__init__(f'{text}; {remedy}' if remedy else text)


class EntryError(AccelError):
    """Raised when a ``[nova_accel] device_spec`` entry cannot be used."""


class ProfileError(AccelError):
    """Raised when a Profile, or a file of Profiles, cannot be used.

    :ivar profile: the name of the document in the file; None if the error is
        about several documents, or about one without a name
    """

    profile: str | None = None


class LinksError(AccelError):
    """Raised when a ``[nova_accel] link_domains`` file cannot be used."""


class TreeError(AccelError):
    """Raised when ``sysfs_root`` is no recording and no sysfs tree."""


class DeviceError(AccelError):
    """Raised when a device cannot be set up as its entry says."""


class AssignmentError(AccelError):
    """Raised when a server cannot get its allocated devices."""


class TakenError(AssignmentError):
    """Raised when another server holds devices that a server needs."""
