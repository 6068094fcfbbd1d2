# SPDX-License-Identifier: Apache-2.0
"""Probes: root's commands that print the version of a device's firmware."""

import collections.abc
import dataclasses
import re

from nova_accel.core import errors
from nova_accel.core.device_spec import command_option
from nova_accel.core.device_spec import command_words

#: The values of the option, for messages.
OPTION = '[nova_accel] firmware_probe'

#: The address of the device.
PLACEHOLDERS = ('{address}',)

#: Seconds. A server that gets the device waits for at most two minutes.
DEFAULT_TIMEOUT = 60
MAX_TIMEOUT = 100

_EXAMPLE = ('write for example {"name": "nic", "command": '
            '["/usr/sbin/devlink", "dev", "info", "pci/{address}"]}')


@dataclasses.dataclass(frozen=True)
class Probe:
    """A command that prints the version of a device's firmware.

    :param name: with which entries name it
    :param command: its words
    :param timeout: seconds after which it is killed
    :param text: the value of the option
    """

    name: str
    command: tuple[str, ...]
    timeout: int = DEFAULT_TIMEOUT
    text: str = dataclasses.field(default='', compare=False)


def is_name(text: str) -> bool:
    """Whether a text can be the name of a probe, as a part of a trait."""
    return bool(re.fullmatch('[a-z0-9]{1,32}', text))


def parse_all(texts: collections.abc.Iterable[str],
              ) -> tuple[dict[str, Probe], list[errors.EntryError]]:
    """Return the usable probes by name, and errors for the others.

    :param texts: the values of the option
    """
    return command_option.parse_all(texts, OPTION, parse)


def parse(text: str, label: str = OPTION) -> Probe:
    """Return a probe.

    :param text: a JSON object
    :raises errors.EntryError: if it cannot be used
    """
    return Probe(**command_option.fields(text, label, _READERS, _EXAMPLE),
                 text=text)


def _read_name(value: object) -> str:
    if not isinstance(value, str) or not is_name(value):
        raise ValueError('is not a name of 1 to 32 lower-case letters and '
                         'digits')
    return value


_READERS: command_option.Readers = {
    'name': _read_name,
    'command': lambda value: command_words.read(value, PLACEHOLDERS),
    'timeout': lambda value: command_option.read_timeout(
        value, DEFAULT_TIMEOUT, MAX_TIMEOUT),
}
