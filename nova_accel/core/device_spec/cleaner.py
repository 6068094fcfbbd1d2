# SPDX-License-Identifier: Apache-2.0
"""Cleaners: root's commands that clean a device between two servers.

A cleaner has a command that verifies its work. A device is clean only if both
commands end with 0.
"""

import collections.abc
import dataclasses
import re

from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core.device_spec import command_option
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
    text: str = dataclasses.field(default='', compare=False)


def devices(unit: collections.abc.Iterable[model.Function],
            ) -> list[model.Function]:
    """Return the functions of a unit that are cleaned one by one.

    A unit can have several devices, as an IOMMU group has. Of each slot, the
    first function is one. Another function of the slot, such as the audio of
    a GPU, is a part of this device, unless it has the same class, or storage.
    """
    found: list[model.Function] = []
    for function in sorted(unit, key=lambda function: function.address):
        before = {other.class_code for other in found
                  if other.slot == function.slot}
        if (not before or function.class_code in before
                or function.is_storage):
            found.append(function)
    return found


def is_name(text: str) -> bool:
    """Whether a text can be the name of a cleaner or of a driver."""
    return bool(re.fullmatch(r'[\w.-]{1,64}', text, re.ASCII))


def parse_all(texts: collections.abc.Iterable[str],
              ) -> tuple[dict[str, Cleaner], list[errors.EntryError]]:
    """Return the usable cleaners by name, and errors for the others.

    :param texts: the values of the option
    """
    return command_option.parse_all(texts, OPTION, parse)


def parse(text: str, label: str = OPTION) -> Cleaner:
    """Return a cleaner.

    :param text: a JSON object
    :raises errors.EntryError: if it cannot be used
    """
    return Cleaner(**command_option.fields(text, label, _READERS, _EXAMPLE),
                   text=text)


def _read_name(value: object) -> str:
    if not isinstance(value, str) or not is_name(value):
        raise ValueError('is not a name of letters, digits, "_", "." and "-"')
    return value


def _read_command(value: object) -> tuple[str, ...]:
    return command_words.read(value, PLACEHOLDERS)


_READERS: command_option.Readers = {
    'name': _read_name,
    'clean': _read_command,
    'verify': _read_command,
    'timeout': lambda value: command_option.read_timeout(
        value, DEFAULT_TIMEOUT, MAX_TIMEOUT),
    'driver': lambda value: '' if value is None else _read_name(value),
}
