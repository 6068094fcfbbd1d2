# SPDX-License-Identifier: Apache-2.0
"""``[nova_accel] fabric_manager``: how the host's fabric manager is asked."""

import collections.abc
import json

from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core.device_spec import command_option
from nova_accel.core.device_spec import command_words
from nova_accel.core.fabric import manager

#: The option, for messages.
OPTION = '[nova_accel] fabric_manager'

#: The manager of a definition that names none.
DEFAULT = 'fmpm'

#: That of a host where the option is not set.
NONE = manager.Definition(DEFAULT, {})

_EXAMPLE = ('write for example {"command": ["/usr/bin/fmpm"], '
            '"modules_command": ["/usr/bin/nvidia-smi", "-q", "-x"]}')


def parse(text: str, managers: collections.abc.Mapping[
        str, manager.FabricManager]) -> manager.Definition | None:
    """Return the definition, None if the option is not set.

    :param text: a JSON object
    :param managers: those that are installed, by name
    :raises errors.EntryError: if it cannot be used
    """
    if not text.strip():
        return None
    name = _name(text)
    if not isinstance(name, str) or name not in managers:
        raise errors.EntryError(
            OPTION, f'manager {errors.quote(name)} is not installed',
            f'known managers: {", ".join(sorted(managers))}')
    found = command_option.fields(
        text, OPTION, {**_READERS, **managers[name].keys}, _EXAMPLE)
    if not found['modules'] and not found['modules_command']:
        raise errors.EntryError(
            OPTION, 'does not tell which card each module is',
            'add "modules" or "modules_command"')
    own = {key: found.pop(key) for key in _READERS}
    return manager.Definition(**{**own, 'manager': name}, settings=found,
                              text=text)


def modules_command(text: str) -> tuple[str, ...]:
    """Return the command that prints the modules, whatever the manager is.

    :raises errors.EntryError: if there is none
    """
    try:
        return command_words.read(json.loads(text).get('modules_command'), ())
    except (AttributeError, ValueError, RecursionError) as error:
        raise errors.EntryError(OPTION, f'modules_command {error}',
                                _EXAMPLE) from None


def _name(text: str) -> object:
    """Return the name of the manager; other errors are found later."""
    try:
        return json.loads(text).get('manager', DEFAULT)
    except (AttributeError, ValueError, RecursionError):
        return DEFAULT


def _read_modules(value: object) -> dict[int, model.PciAddress]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError('is not an object of modules and PCI addresses')
    found: dict[int, model.PciAddress] = {}
    for number, text in value.items():
        if not (number.isascii() and number.isdecimal()
                and len(number) <= 4):
            raise ValueError(f'has {errors.quote(number)}, which is not the '
                             'number of a module')
        try:
            address = model.PciAddress.parse(text)
        except (TypeError, ValueError):
            raise ValueError(f'has {errors.quote(text)}, which is not a PCI '
                             'address') from None
        if address in found.values():
            raise ValueError(f'has {address} twice')
        if int(number) in found:
            raise ValueError(f'has module {int(number)} twice')
        found[int(number)] = address
    return found


_READERS: command_option.Readers = {
    'manager': lambda value: value,
    'modules': _read_modules,
    'modules_command': lambda value: (
        () if value is None else command_words.read(value, ())),
}
