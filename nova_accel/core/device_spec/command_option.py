# SPDX-License-Identifier: Apache-2.0
"""Options of root with commands that entries of ``device_spec`` name.

Each value of such an option is a JSON object.
"""

import collections.abc
import json
import typing

from nova_accel.core import errors

#: Functions that read the value of a key, None if it is absent, by key. They
#: raise ValueError; the text follows the name of the key.
Readers = collections.abc.Mapping[str, collections.abc.Callable[[object],
                                                                object]]


class _Named(typing.Protocol):
    @property
    def name(self) -> str:
        """With which entries name it."""


_Definition = typing.TypeVar('_Definition', bound=_Named)


def parse_all(texts: collections.abc.Iterable[str], option: str,
              parse: collections.abc.Callable[[str, str], _Definition],
              ) -> tuple[dict[str, _Definition], list[errors.EntryError]]:
    """Return the usable definitions by name, and errors for the others.

    :param texts: the values of the option
    :param option: its name, for messages
    :param parse: takes a value and its label
    """
    found: dict[str, _Definition] = {}
    problems = []
    for number, text in enumerate(texts, 1):
        label = f'{option} #{number}'
        try:
            one = parse(text, label)
            if one.name in found:
                raise errors.EntryError(
                    label, f'is a second one named {errors.quote(one.name)}',
                    'give it another name')
            found[one.name] = one
        except errors.EntryError as error:
            problems.append(error)
    return found, problems


def fields(text: str, label: str, readers: Readers, example: str,
           ) -> dict[str, typing.Any]:
    """Return the values of all keys of one definition.

    :param text: a JSON object
    :param example: the remedy of an invalid one
    :raises errors.EntryError: if it cannot be used
    """
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise errors.EntryError(label, f'is not JSON ({error}): '
                                f'{errors.quote(text)}', example) from None
    if not isinstance(loaded, dict):
        raise errors.EntryError(label, 'is not a JSON object', example)
    unknown = sorted(set(loaded) - set(readers))
    if unknown:
        raise errors.EntryError(
            label, f'does not know the key {errors.quote(unknown[0])}',
            f'known keys: {", ".join(readers)}')
    found = {}
    for key, read in readers.items():
        try:
            found[key] = read(loaded.get(key))
        except ValueError as error:
            raise errors.EntryError(label, f'{key} {error}', example
                                    ) from None
    return found


def read_timeout(value: object, default: int, most: int) -> int:
    """Return a number of seconds.

    :raises ValueError: if it is none, or more than ``most``
    """
    if value is None:
        return default
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f'is not a number of seconds, 1 to {most}')
    return value
