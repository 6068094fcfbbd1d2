# SPDX-License-Identifier: Apache-2.0
"""Cleaners: root's commands that clean a device between two servers.

A cleaner has a command that verifies its work. A device is clean only if both
commands end with 0.
"""

import collections.abc
import dataclasses
import json
import re

from nova_accel.core import errors
from nova_accel.core.device_spec import command_words

#: The values of the option, for messages.
OPTION = '[nova_accel] cleaner'

#: The address of the device; the number of the region of an FPGA.
PLACEHOLDERS = ('{address}', '{region}')

#: Seconds for each command.
DEFAULT_TIMEOUT = 3600
MAX_TIMEOUT = 7 * 86400

_EXAMPLE = ('write for example {"name": "nvme", "clean": '
            '["/usr/bin/nova-accel-nvme", "clean", "{address}"], "verify": '
            '["/usr/bin/nova-accel-nvme", "verify", "{address}"]}')


@dataclasses.dataclass(frozen=True)
class Cleaner:
    """A cleaner.

    :param name: with which entries name it
    :param clean: the words of the command that cleans
    :param verify: the words of the command that verifies that
    :param timeout: seconds after which a command is killed
    :param text: the value of the option
    :param driver: the host's driver that the device has meanwhile; '' for the
        one that it has
    """

    name: str
    clean: tuple[str, ...]
    verify: tuple[str, ...]
    timeout: int = DEFAULT_TIMEOUT
    driver: str = ''
    text: str = ''


def is_name(text: str) -> bool:
    """Whether a text can be the name of a cleaner or of a driver."""
    return bool(re.fullmatch(r'[\w.-]{1,64}', text, re.ASCII))


def parse_all(texts: collections.abc.Iterable[str],
              ) -> tuple[dict[str, Cleaner], list[errors.EntryError]]:
    """Return the usable cleaners by name, and errors for the others.

    :param texts: the values of the option
    """
    found: dict[str, Cleaner] = {}
    problems = []
    for number, text in enumerate(texts, 1):
        label = f'{OPTION} #{number}'
        try:
            one = parse(text, label)
            if one.name in found:
                raise errors.EntryError(
                    label, f'is a second cleaner {errors.quote(one.name)}',
                    'give it another name')
            found[one.name] = one
        except errors.EntryError as error:
            problems.append(error)
    return found, problems


def parse(text: str, label: str = OPTION) -> Cleaner:
    """Return a cleaner.

    :param text: a JSON object
    :raises errors.EntryError: if it cannot be used
    """
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise errors.EntryError(label, f'is not JSON ({error}): '
                                f'{errors.quote(text)}', _EXAMPLE) from None
    if not isinstance(loaded, dict):
        raise errors.EntryError(label, 'is not a JSON object', _EXAMPLE)
    unknown = sorted(set(loaded) - set(_READERS))
    if unknown:
        raise errors.EntryError(
            label, f'does not know the key {errors.quote(unknown[0])}',
            f'known keys: {", ".join(_READERS)}')
    fields = {}
    for key, read in _READERS.items():
        try:
            fields[key] = read(loaded.get(key))
        except ValueError as error:
            raise errors.EntryError(
                label, f'{key} {error}', _EXAMPLE) from None
    return Cleaner(**fields, text=text)


def _read_name(value: object) -> str:
    if not isinstance(value, str) or not is_name(value):
        raise ValueError('is not a name of letters, digits, "_", "." and "-"')
    return value


def _read_command(value: object) -> tuple[str, ...]:
    return command_words.read(value, PLACEHOLDERS)


def _read_timeout(value: object) -> int:
    if value is None:
        return DEFAULT_TIMEOUT
    if type(value) is not int or not 1 <= value <= MAX_TIMEOUT:
        raise ValueError(f'is not a number of seconds, 1 to {MAX_TIMEOUT}')
    return value


_READERS: dict[str, collections.abc.Callable[[object], object]] = {
    'name': _read_name,
    'clean': _read_command,
    'verify': _read_command,
    'timeout': _read_timeout,
    'driver': lambda value: '' if value is None else _read_name(value),
}
