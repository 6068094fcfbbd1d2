# SPDX-License-Identifier: Apache-2.0
"""The keys of an entry that say how its FPGAs are programmed."""

import collections.abc
import typing

from nova_accel.core import kind
from nova_accel.core.device_spec import command_words

PROGRAM, TIMEOUT = 'program', 'program_timeout'

#: The value of ``program`` for the kernel's FPGA manager.
MANAGER: typing.Final = 'fpga_manager'

#: The kernel's FPGA manager, or the words of a command.
Program = typing.Literal['fpga_manager'] | tuple[str, ...]

DEFAULT_TIMEOUT = 300
MAX_TIMEOUT = 3600

_BITSTREAM, _REGION = '{bitstream}', '{region}'
_PLACEHOLDERS = (_BITSTREAM, '{address}', _REGION)


def names_region(program: Program) -> bool:
    """Whether a program is told which region of the card it programs."""
    return program != MANAGER and any(_REGION in word for word in program)


def _read_program(value: object) -> Program:
    if value == MANAGER:
        return MANAGER
    if not isinstance(value, list):
        raise ValueError(f'is neither "{MANAGER}" nor a list of words')
    words = command_words.read(value, _PLACEHOLDERS)
    if _BITSTREAM not in command_words.used(words):
        raise ValueError('has no {bitstream}')
    return words


def _read_timeout(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not (
            1 <= value <= MAX_TIMEOUT):
        raise ValueError(f'is not a number of seconds, 1 to {MAX_TIMEOUT}')
    return value


KEYS: collections.abc.Mapping[str, kind.Reader] = {
    PROGRAM: _read_program, TIMEOUT: _read_timeout}
