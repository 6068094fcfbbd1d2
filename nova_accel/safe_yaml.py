# SPDX-License-Identifier: Apache-2.0
"""YAML and JSON that people write, loaded without what can do harm.

No file is waited for or too large, no key replaces another in silence,
nothing is cheap to write and dear to load, and nothing makes objects of other
programs.
"""

import collections.abc
import json
import os
import re
import stat
import typing

import yaml

#: Deepest nesting of a document.
MAX_DEPTH = 20

# How much of a parser's complaint is repeated, in characters.
_MAX_WHY = 200

# What libyaml says of nesting that is too deep for itself, since PyYAML 6.0.4.
_TOO_DEEP = 'exceeded maximum nesting depth'

# To YAML 1.1, 1:30 is 90, and the more colons, the dearer.
_NUMBERS = frozenset({'tag:yaml.org,2002:int', 'tag:yaml.org,2002:float'})
_BASE_60 = ':'

# What an escape can write, and no output can.
_LONE = re.compile('[\ud800-\udfff]')


class TooLarge(ValueError):
    """A file is larger than whoever reads it wants to read."""


class _Unique:
    """A Loader in which no key can quietly replace another."""

    def construct_mapping(self, node, deep=False):
        mapping = super().construct_mapping(node, deep)
        if len(mapping) < len(node.value):
            raise yaml.YAMLError(
                f'line {node.start_mark.line + 1}: a key is there twice')
        return mapping


class _Typed(_Unique, getattr(yaml, 'CSafeLoader', yaml.SafeLoader)):
    """Safe YAML, in which 1:30 is a text, as it is in YAML 1.2."""

    def construct_object(self, node, deep=False):
        if node.tag in _NUMBERS and _BASE_60 in node.value:
            return self.construct_scalar(node)
        try:
            return super().construct_object(node, deep)
        except (ArithmeticError, AttributeError, LookupError, TypeError):
            # What PyYAML makes of "!!bool maybe" and "!!timestamp soon".
            raise yaml.YAMLError(f'line {node.start_mark.line + 1}: a value '
                                 'is not what its tag says') from None


class _Texts(_Unique, getattr(yaml, 'CBaseLoader', yaml.BaseLoader)):
    """YAML in which a scalar is what is written.

    In YAML 1.1, which PyYAML reads, a bare 0000:44:00.0 is the number
    158400.0.
    """


def read(path: str, most: int) -> str:
    """The text of a file.

    :param most: its largest size, in bytes
    :raises TooLarge: if it is larger
    :raises ValueError: saying why, if it is no file or no text
    :raises OSError: if it cannot be read
    """
    with open(path, 'rb', opener=_open_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError('is not a file')
        content = file.read(most + 1)
    if len(content) > most:
        raise TooLarge(f'is larger than {most} bytes')
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ValueError('is not UTF-8 text') from None


def signature(path: str) -> tuple[int, int, int]:
    """What is another when a file has changed.

    :raises OSError: if there is none
    """
    status = os.stat(path)
    return status.st_mtime_ns, status.st_size, status.st_ino


def why(error: Exception) -> str:
    """A parser's complaint, on one line and not as long as the document."""
    return ' '.join(str(error).split())[:_MAX_WHY]


def load_json(text: str) -> list[typing.Any]:
    """The one document of a text, as a list.

    :raises ValueError: if it is none
    :raises RecursionError: if it is nested too deep
    """
    loaded = [json.loads(text, object_pairs_hook=_unique)]
    _check_plain(loaded)
    return loaded


def load_yaml(text: str, as_texts: bool = False) -> list[typing.Any]:
    """All documents of a text.

    :param as_texts: leave scalars as they are written
    :raises ValueError, yaml.YAMLError: if it is no YAML, or more than that
    :raises RecursionError: if it is nested too deep
    """
    loader = _Texts if as_texts else _Typed
    _check_yaml(text, loader)
    loaded = list(yaml.load_all(text, loader))
    _check_plain(loaded)
    return loaded


def _open_without_waiting(path: str, flags: int) -> int:
    # What turns out to be a pipe can be waited for for ever.
    return os.open(path, flags | os.O_NONBLOCK)


def _check_yaml(text: str, loader: type) -> None:
    """Refuse what is cheap to write and dear to load.

    Aliases are what a "billion laughs" document is made of, and the loader
    descends into nested nodes on the stack.
    """
    depth = 0
    for event in _events(text, loader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent) or depth > MAX_DEPTH:
            raise yaml.YAMLError(
                f'line {event.start_mark.line + 1}: '
                + ('is nested too deep' if depth > MAX_DEPTH
                   else 'aliases (*name) are not accepted'))


def _events(text: str, loader: type) -> collections.abc.Iterator[yaml.Event]:
    try:
        yield from yaml.parse(text, loader)
    except yaml.MarkedYAMLError as error:
        if error.problem != _TOO_DEEP:
            raise
        # It reads ahead, and so comes upon this before we do.
        raise yaml.YAMLError(f'line {error.problem_mark.line + 1}: is nested '
                             'too deep') from None


def _check_plain(loaded: list[typing.Any]) -> None:
    """Refuse what is no text, and nesting that JSON lets through."""
    level: collections.abc.Iterable = loaded
    for _depth in range(MAX_DEPTH):
        below: list[typing.Any] = []
        for item in level:
            if isinstance(item, dict):
                if not all(isinstance(key, str) for key in item):
                    raise ValueError('has a key that is not a string')
                below.extend(item.values())
                below.extend(item)
            elif isinstance(item, list):
                below.extend(item)
            elif isinstance(item, str) and _LONE.search(item):
                raise ValueError('has half a character (a lone surrogate)')
        level = below
    if level:
        raise ValueError('is nested too deep')


def _unique(pairs):
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise ValueError('a key is there twice')
    return mapping
