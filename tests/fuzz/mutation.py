# SPDX-License-Identifier: Apache-2.0
"""Random changes to bytes, and to structures of lists, dicts and scalars."""

import collections.abc
import random
import re
import typing

#: Texts that parsers have failed on: of numbers, names, addresses, patterns,
#: YAML's tags and markup, and what cannot be printed or encoded.
TEXTS = (
    '', ' ', '\0', 'a\0b', '\n', '\r\n', '\t', '\x1b[31m', '\x85', '\u2028',
    '\ud800', '\udc80', '\u202e', '\ufeff', '\ufffe', 'é', 'ſ', 'İ', '٣', '²',
    '𝟙', '\U0010ffff', '0', '-1', '1.5', '1e999', 'nan', 'inf', '1_000', '007',
    '0x10', '0x' + 'f' * 5000, '9' * 20, '9' * 400, '9' * 5000, '1e-999',
    '0.' + '9' * 50, '1:30', '1' + ':1' * 2000, '2026-01-01', 'null', 'true',
    'yes', 'off', '~', '*', '&a', '*a', '<<', '!!binary x', '!!bool maybe',
    '!!python/none x', '!!timestamp soon', '{}', '[]', '{', '[', '"', "'",
    '\\', '%', '%s', '{0}', '&amp;', '<a/>', ']]>', '<!--',
    '<?xml version="1.0" encoding="utf-16"?>',
    '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]>', '&b;',
    'required', 'forbidden', 'all', 'guest', 'ACCEL0', 'ACCEL' + '9' * 50,
    'CUSTOM_A', 'CUSTOM_' + 'A' * 249, 'VCPU', 'PGPU', 'resources_ACCEL1:PGPU',
    '0000:81:00.0', 'ffffffff:ff:1f.7', '0000:81:00.0\n', '81:00.0', '::.',
    'pci0000:80', '..', '../..', '/', '//', './.', 'a/' * 200, '/dev/full',
    '/dev/zero', '/proc/self/mem', '/nowhere', '(a*)*b', '(?:', '(a|aa)+$',
    '[', 'x{9999}', '(' * 200, '.*' * 60, '(?P<a>.)(?P=a)',
    '5b0bc9e4-6c1f-4f4e-8f33-1f0ee4e6d7a1', '5b0bc9e46c1f4f4e8f331f0ee4e6d7a1',
    'a' * 64, 'a' * 256, 'a' * 5000, 'a b ' * 5000)

_NUMBERS = (0, -1, 1, 2, 255, 256, 1024, 65535, 65536, 2**31 - 1, 2**31,
            2**32, 2**63, 2**64, -2**63, 10**20, 10**400, 0.0, -0.0, 1.5,
            1e308, float('nan'), float('inf'))
_SCALARS = (*_NUMBERS, *TEXTS, None, True, False)
_OPEN = (b'[', b'{"a":', b'- ', b'(', b'<a>', b'a/', b'../', b'&a [')
_DIGITS = re.compile(r'\d+')
# Most are small, so that inputs are fast.
_SIZES = (2, 3, 5, 10, 30, 100, 1000, 20_000)
# About the longest part that a repetition makes, in characters.
_LONGEST = 100_000

_CHANGES = 6
# How often the choice of a node goes one level deeper.
_DEEPER = 0.85


def count(rng: random.Random) -> int:
    """Return a number of changes: mostly one or two."""
    number = 1
    while number < _CHANGES and rng.random() < 0.4:
        number += 1
    return number


# Structures

class _Place(typing.NamedTuple):
    """A node of a structure: ``holder[key]``."""

    holder: typing.Any
    key: typing.Any

    @property
    def value(self):
        return self.holder[self.key]

    @value.setter
    def value(self, value):
        self.holder[self.key] = value


def structure(rng: random.Random, value: object, donor: object) -> object:
    """Return a copy of a structure with one node changed.

    :param donor: another structure, of which a part can be taken
    :raises RecursionError: if it is nested too deep
    """
    root = [_copy(value)]
    change = rng.choice((_set_scalar, _change_text, _change_text, _change_text,
                         _delete, _duplicate, _swap, _graft, _nest, _rename,
                         _repeat))
    change(rng, root, _pick(rng, root), donor)
    return root[0] if root else None


def _copy(value):
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [*map(_copy, value)] if isinstance(value, list) else value


def _pick(rng, root) -> _Place:
    place = _Place(root, 0)
    while isinstance(place.value, (dict, list)) and place.value and (
            rng.random() < _DEEPER):
        inner = place.value
        place = _Place(inner, rng.choice([*inner]) if isinstance(inner, dict)
                       else rng.randrange(len(inner)))
    return place


def _set_scalar(rng, root, place, donor):
    place.value = rng.choice(_SCALARS)


def _change_text(rng, root, place, donor):
    value = place.value
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        place.value = rng.choice(_SCALARS)
    elif isinstance(value, int):
        place.value = rng.choice((value + 1, value - 1, -value, value << 31,
                                  str(value), [value]))
    else:
        place.value = text(rng, value)


def _delete(rng, root, place, donor):
    del place.holder[place.key]


def _duplicate(rng, root, place, donor):
    if isinstance(place.holder, list):
        place.holder.insert(rng.randrange(len(place.holder) + 1),
                            _copy(place.value))
    else:
        place.holder[rng.choice(TEXTS)] = _copy(place.value)


def _swap(rng, root, place, donor):
    other = _pick(rng, root)
    mine, theirs = _copy(place.value), _copy(other.value)
    other.value = mine
    # The other node can hold this one, which then is no part of it any more.
    place.value = theirs


def _graft(rng, root, place, donor):
    place.value = _copy(_pick(rng, [donor]).value)


def _nest(rng, root, place, donor):
    value = place.value
    for _level in range(rng.choice((1, 1, 2, 18, 19, 20, 21, 150))):
        value = [value] if rng.random() < 0.5 else {'a': value}
    place.value = value


def _rename(rng, root, place, donor):
    if isinstance(place.holder, dict):
        name = (rng.choice(TEXTS) if rng.random() < 0.3 else
                text(rng, str(place.key)))
        place.holder[name] = place.holder.pop(place.key)


def _times(rng, part: str | bytes) -> int:
    """Return how often to repeat a part."""
    return min(rng.choice(_SIZES), 1 + _LONGEST // (len(part) + 1))


def _repeat(rng, root, place, donor):
    number = _times(rng, repr(place.value))
    if isinstance(place.value, list):
        place.value = place.value * number
    elif isinstance(place.holder, list):
        place.holder[place.key:place.key] = [place.value] * number
    elif isinstance(place.value, str):
        place.value = place.value * number


# Texts and bytes

def text(rng: random.Random, old: str) -> str:
    """Return a text with one change."""
    start, end = _range(rng, old)
    match rng.randrange(7):
        case 0:
            return old[:start] + rng.choice(TEXTS) + old[end:]
        case 1:
            return old[:start] + old[end:]
        case 2:
            return old[:end] + old[start:]
        case 3:
            return old[:start] + chr(rng.choice((rng.randrange(128),
                                                 rng.randrange(0x3000)))
                                     ) + old[start + 1:]
        case 4 if _DIGITS.search(old):
            number = rng.choice([*_DIGITS.finditer(old)])
            return (old[:number.start()] + str(rng.choice(_NUMBERS))
                    + old[number.end():])
        case 5:
            part = old[start:end]
            return old[:start] + part * _times(rng, part) + old[end:]
    return old.upper() if rng.random() < 0.5 else old.swapcase()


def raw(rng: random.Random, old: bytes, donor: bytes) -> bytes:
    """Return bytes with one change.

    :param donor: other bytes, of which a part can be taken
    """
    start, end = _range(rng, old)
    match rng.randrange(7):
        case 0:
            return old[:start] + rng.randbytes(rng.choice(_SIZES[:5])) + (
                old[end:])
        case 1:
            return old[:start] + old[end:]
        case 2:
            return old[:end] + old[start:]
        case 3:
            return old[:start] + rng.choice(TEXTS).encode(
                errors='surrogatepass') + old[start:]
        case 4:
            begin, finish = _range(rng, donor)
            return old[:start] + donor[begin:finish] + old[end:]
        case 5:
            part = rng.choice(_OPEN)
            return old[:start] + part * _times(rng, part) + old[end:]
    if not old:
        return b'\0'
    return old[:start] + bytes([old[start] ^ 1 << rng.randrange(8)]) + (
        old[start + 1:])


def _range(rng, old: collections.abc.Sized) -> tuple[int, int]:
    """Return the start and the end of a part, which is mostly short."""
    start = rng.randrange(len(old)) if old else 0
    longest = len(old) - start
    return start, start + (rng.randint(0, longest) if rng.random() < 0.2
                           else min(rng.randint(0, 8), longest))
