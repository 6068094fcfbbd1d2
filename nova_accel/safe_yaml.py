# SPDX-License-Identifier: Apache-2.0
"""Load YAML and JSON files written by hand, and reject harmful content.

Pipes and files that are too large, duplicate keys, aliases, deep nesting, too
many values and tags that create Python objects are rejected. PyYAML's safe
loader checks only the last one.
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
#: Most scalars, lists and mappings of a file.
MAX_VALUES = 100_000

_TOO_MANY = f'has more than {MAX_VALUES} values'

# Longest part of a parser's error that a message repeats, in characters.
_MAX_WHY = 200

# libyaml's own error for nesting that is too deep, since PyYAML 6.0.4.
_TOO_DEEP = 'exceeded maximum nesting depth'

# YAML 1.1 reads 1:30 as 90. The time to do so grows with each colon.
_NUMBERS = frozenset({'tag:yaml.org,2002:int', 'tag:yaml.org,2002:float'})
_BASE_60 = ':'

# Escapes can write a lone surrogate, but it cannot be encoded for output.
_LONE = re.compile('[\ud800-\udfff]')


class TooLarge(ValueError):
    """Raised when a file is larger than the caller's limit."""


class _Mark(typing.Protocol):
    """A place in a text; PyYAML has two such classes."""

    line: int


def _error(mark: _Mark | None, reason: str) -> yaml.YAMLError:
    return yaml.YAMLError(f'line {mark.line + 1}: {reason}' if mark
                          else reason)


if typing.TYPE_CHECKING:
    _BaseLoader = yaml.BaseLoader
    _SafeLoader = yaml.SafeLoader
else:
    # Those with libyaml are faster.
    _BaseLoader = getattr(yaml, 'CBaseLoader', yaml.BaseLoader)
    _SafeLoader = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)


class _UniqueKeys(yaml.constructor.BaseConstructor):
    """A Loader that rejects duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False,
                          ) -> dict[collections.abc.Hashable, typing.Any]:
        mapping = super().construct_mapping(node, deep)
        if len(mapping) < len(node.value):
            raise _error(node.start_mark, 'a key appears twice')
        return mapping


class _TypedLoader(_UniqueKeys, _SafeLoader):
    """Safe YAML that reads 1:30 as a string, as YAML 1.2 does."""

    def construct_object(self, node: yaml.Node, deep: bool = False,
                         ) -> typing.Any:
        if (isinstance(node, yaml.ScalarNode) and node.tag in _NUMBERS
                and _BASE_60 in node.value):
            return self.construct_scalar(node)
        try:
            return super().construct_object(node, deep)
        except (ArithmeticError, AttributeError, LookupError, TypeError):
            # PyYAML raises these for "!!bool maybe" and "!!timestamp soon".
            raise _error(node.start_mark,
                         'a value does not match its tag') from None


class _StringLoader(_UniqueKeys, _BaseLoader):
    """YAML whose scalars are all strings.

    PyYAML reads YAML 1.1, in which an unquoted 0000:44:00.0 is the number
    158400.0.
    """


def read(path: str, most: int) -> str:
    """Return the text of a file.

    :param most: largest accepted size, in bytes
    :raises TooLarge: if the file is larger
    :raises ValueError: if it is not a regular file or not UTF-8
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


#: A value that differs after a file has changed.
Signature = tuple[int, int, int]


def signature(path: str) -> Signature:
    """Return the signature of a file.

    :raises OSError: if the file does not exist
    """
    status = os.stat(path)
    return status.st_mtime_ns, status.st_size, status.st_ino


def why(error: Exception) -> str:
    """Return a parser's error as one line of limited length."""
    return ' '.join(str(error).split())[:_MAX_WHY]


def load_json(text: str) -> list[typing.Any]:
    """Return the one JSON document of a text, as a list.

    :raises ValueError: if the text is not valid JSON
    :raises RecursionError: if it is nested too deep
    """
    loaded = [json.loads(text, object_pairs_hook=_unique)]
    _check_plain(loaded)
    return loaded


def load_yaml(text: str, as_texts: bool = False) -> list[typing.Any]:
    """Return all YAML documents of a text.

    :param as_texts: return all scalars as strings
    :raises ValueError, yaml.YAMLError: if it is not valid YAML, or is rejected
    :raises RecursionError: if it is nested too deep
    """
    loader = _StringLoader if as_texts else _TypedLoader
    _check_yaml(text, loader)
    loaded = list(yaml.load_all(text, loader))
    _check_plain(loaded)
    return loaded


def _open_without_waiting(path: str, flags: int) -> int:
    # Opening a pipe would block until another program writes to it.
    return os.open(path, flags | os.O_NONBLOCK)


def _check_yaml(text: str, loader: type) -> None:
    """Reject what is costly to load, before the text is loaded.

    A "billion laughs" document consists of aliases. The loader recurses into
    nested nodes.
    """
    depth = values = 0
    for event in _events(text, loader):
        values += isinstance(event, yaml.NodeEvent)
        if values > MAX_VALUES:
            raise yaml.YAMLError(_TOO_MANY)
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent) or depth > MAX_DEPTH:
            raise _error(event.start_mark, (
                'is nested too deep' if depth > MAX_DEPTH
                else 'aliases (*name) are not accepted'))


def _events(text: str, loader: type) -> collections.abc.Iterator[yaml.Event]:
    try:
        yield from yaml.parse(text, loader)
    except yaml.MarkedYAMLError as error:
        if error.problem != _TOO_DEEP:
            raise
        # The parser reads ahead, so its own limit can be hit before ours.
        raise _error(error.problem_mark, 'is nested too deep') from None


def _check_plain(loaded: list[typing.Any]) -> None:
    """Reject what a caller could not handle or print.

    That is keys that are not strings, lone surrogates, deep nesting, and more
    than :data:`MAX_VALUES` values.
    """
    level: list[typing.Any] = loaded
    values = 0
    for _depth in range(MAX_DEPTH):
        values += len(level)
        if values > MAX_VALUES:
            raise ValueError(_TOO_MANY)
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
                raise ValueError('contains a lone surrogate')
        level = below
    if level:
        raise ValueError('is nested too deep')


def _unique(pairs: list[tuple[str, typing.Any]]) -> dict[str, typing.Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise ValueError('a key appears twice')
    return mapping
