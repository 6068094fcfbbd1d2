# SPDX-License-Identifier: Apache-2.0
"""The command line of NVIDIA's fmpm, and what it prints.

It prints results as JSON and errors as text, both on its standard output. It
ends with the number that Fabric Manager returned, of which the shell sees the
last eight bits.

Sources: github.com/NVIDIA/Fabric-Manager-Client, fmpm.cpp, version 1.0.1; the
headers of the package nvidia-fabricmanager-dev, nv_fm_types.h (the numbers
that Fabric Manager returns, its limits) and nv_fm_agent.h (which call returns
which).
"""

import collections.abc
import contextlib
import json
import re
import typing

from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core.device_spec import command_option
from nova_accel.core.device_spec import command_words
from nova_accel.core.fabric import manager

LIST = 'list partitions'
ACTIVATE = 'activate partition'
DEACTIVATE = 'deactivate partition'
RESTORE = 'restore active partitions'
FAILED_LINKS = 'list failed links'

#: FM_MAX_FABRIC_PARTITIONS: the numbers of partitions are lower.
MAX_PARTITIONS = 64

#: Seconds after which the command is killed. fmpm itself waits for one second
#: for a connection.
DEFAULT_TIMEOUT = 60
MAX_TIMEOUT = 600
#: For operations that change nothing, which nova-compute waits for.
LIST_TIMEOUT = 10

#: The largest output in bytes: 64 partitions of 16 cards have 350,000.
MAX_OUTPUT = 1024 * 1024

#: The readers of the keys of ``[nova_accel] fabric_manager``.
KEYS: command_option.Readers = {
    'command': lambda value: command_words.read(value, ()),
    'timeout': lambda value: command_option.read_timeout(
        value, DEFAULT_TIMEOUT, MAX_TIMEOUT),
}

_OPTIONS = {LIST: '-l', ACTIVATE: '-a', DEACTIVATE: '-d',
            RESTORE: '--set-activated-list',
            FAILED_LINKS: '--get-nvlink-failed-devices'}

_Failure = manager.Failure

# An object of JSON.
_Object = dict[str, typing.Any]

#: By what Fabric Manager returns (nv_fm_types.h).
_FAILURES = {
    -1: (_Failure.UNKNOWN_PARTITION, 'BADPARAM'),
    -2: (_Failure.OTHER, 'GENERIC_ERROR'),
    -3: (_Failure.NOT_SUPPORTED, 'NOT_SUPPORTED'),
    -4: (_Failure.NOT_READY, 'UNINITIALIZED'),
    -5: (_Failure.TIMED_OUT, 'TIMEOUT'),
    -6: (_Failure.OTHER, 'VERSION_MISMATCH'),
    -7: (_Failure.IN_USE, 'IN_USE'),
    -8: (_Failure.NOT_READY, 'NOT_CONFIGURED'),
    -9: (_Failure.UNREACHABLE, 'CONNECTION_NOT_VALID'),
    -10: (_Failure.LINK_ERROR, 'NVLINK_ERROR'),
}

_REMEDIES = {
    -3: 'set FABRIC_MODE=1 in the configuration of Fabric Manager',
    -6: 'fmpm, libnvfm and Fabric Manager must be of the same version',
}
_UNREACHABLE = ('start nvidia-fabricmanager, and see that fmpm connects to '
                'the address on which it listens')


def words(command: collections.abc.Sequence[str], operation: str,
          partitions: collections.abc.Collection[int] = ()) -> list[str]:
    """Return the words of one call of fmpm.

    :param command: those of the option
    :param operation: such as :data:`LIST`
    :param partitions: the numbers of partitions that it takes
    :raises ValueError: if an argument is invalid
    """
    if operation not in _OPTIONS:
        raise ValueError(f'not an operation of fmpm: {operation!r}')
    numbers = list(partitions)
    if not all(type(number) is int and 0 <= number < MAX_PARTITIONS
               for number in numbers):
        raise ValueError(f'not numbers of partitions: {numbers!r}')
    if operation != RESTORE and len(numbers) != (
            operation in (ACTIVATE, DEACTIVATE)):
        raise ValueError(f'wrong number of partitions to {operation}: '
                         f'{numbers!r}')
    takes = [','.join(map(str, numbers))] if (
        numbers or operation == RESTORE) else []
    return [*command, _OPTIONS[operation], *takes]


def command(settings: manager.Definition, operation: str,
            partitions: collections.abc.Collection[int]) -> manager.Command:
    """Return one call of fmpm.

    The parameters and errors are those of :func:`words`.
    """
    return manager.Command(
        words(settings.settings['command'], operation, partitions),
        timeout(operation, settings.settings['timeout']), MAX_OUTPUT)


def timeout(operation: str, most: int) -> int:
    """Return the seconds after which a call is killed.

    :param most: the timeout of the option
    """
    return (min(most, LIST_TIMEOUT) if operation in (LIST, FAILED_LINKS)
            else most)


def failure(operation: str, code: int | None, output: str, thing: str,
            ) -> manager.FabricError | None:
    """Return why a call failed, None if it did not.

    :param code: its exit code, None if it was killed
    :param output: what it printed
    :param thing: what failed, for the message
    """
    if code == 0:
        return None
    said = _last_line(output)
    if code is None:
        return manager.FabricError(
            _Failure.TIMED_OUT, thing, 'fmpm did not end in time'
            + (f' and said {said!r}' if said else ''),
            'look at the log of nvidia-fabricmanager')
    number = _returned(code, output)
    reason = f'fmpm ended with {code}' + (f' and said {said!r}' if said
                                          else '')
    if number == -9 or 'Failed to connect' in output and number != -6:
        return manager.FabricError(_Failure.UNREACHABLE, thing, reason,
                                   _UNREACHABLE)
    found, name = _FAILURES.get(number, (_Failure.OTHER, ''))
    if number == -4 and operation == DEACTIVATE:
        found = _Failure.NOT_ACTIVE
    if number == -1 and operation in (LIST, FAILED_LINKS):
        found = _Failure.OTHER
    return manager.FabricError(
        found, thing, reason + (f' (FM_ST_{name})' if name else ''),
        _REMEDIES.get(number, ''))


def read_partitions(output: str, thing: str) -> tuple[manager.Partition, ...]:
    """Return the partitions that ``fmpm -l`` printed.

    :param thing: what failed, for the message
    :raises manager.FabricError: if it cannot be understood
    """
    with _understood(thing, output):
        found = tuple(
            manager.Partition(
                _number(item['partitionId'], MAX_PARTITIONS),
                tuple(map(_member, _list(item, 'gpuInfo', 'numGpus'))),
                bool(_number(item['isActive'])))
            for item in _list(_load(output), 'partitionInfo',
                              'numPartitions'))
        if len({one.id for one in found}) != len(found):
            raise ValueError('two partitions have the same number')
        for one in found:
            if not one.members or len(one.modules) != len(one.members):
                raise ValueError(f'partition {one.id} has no card, or one '
                                 'twice')
        return found


def read_failed_links(output: str, thing: str,
                      ) -> tuple[manager.FailedLinks, ...]:
    """Return what ``fmpm --get-nvlink-failed-devices`` printed.

    The parameters and errors are those of :func:`read_partitions`.
    """
    with _understood(thing, output):
        document = _load(output)
        return tuple(
            manager.FailedLinks(
                _address(item['pciBusId']), _text(item['uuid']),
                tuple(map(_number, _list(item, 'portNum', 'numPorts'))),
                is_switch)
            for key, count, is_switch in (
                ('gpuInfo', 'numGpus', False),
                ('switchInfo', 'numSwitches', True))
            for item in _list(document, key, count))


@contextlib.contextmanager
def _understood(thing: str, output: str) -> collections.abc.Iterator[None]:
    """Turn what is wrong with an output into an error."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError,
            RecursionError) as error:
        said = (f'it has no {error}' if isinstance(error, KeyError)
                else str(error) or type(error).__name__)
        raise manager.FabricError(
            _Failure.OTHER, thing, 'fmpm printed what cannot be understood, '
            f'{errors.quote(output)}: {errors.quote(said)}',
            _REMEDIES[-6]) from None


def _load(output: str) -> typing.Any:
    """Return the object that an output has, among lines of a library."""
    return json.loads(output[output.find('{'):output.rfind('}') + 1])


def _returned(code: int, output: str) -> int:
    """Return what Fabric Manager returned, 0 if it was not asked."""
    if match := re.search(r'fmReturn: (-?\d{1,9})', output):
        return int(match[1])
    # fmpm ends with 1 if its arguments are wrong, and less by a signal.
    return code - 256 if code > 127 else 0


def _last_line(output: str) -> str:
    """Return the end of what a command printed, in one line."""
    lines = filter(None, map(str.strip, output.split('\n')))
    return next(iter(list(lines)[-1:]), '')[-300:]


def _member(item: _Object) -> manager.Member:
    return manager.Member(_number(item['physicalId']),
                          _address(item.get('pciBusId', '')),
                          _count(item, 'numNvLinksAvailable'),
                          _count(item, 'maxNumNvLinks'))


def _count(item: _Object, key: str) -> int | None:
    return _number(item[key]) if key in item else None


def _list(item: _Object, key: str, count: str) -> list[typing.Any]:
    """Return a list of an output, which also has its length."""
    found = item[key]
    if not isinstance(found, list) or len(found) != item[count]:
        raise ValueError(f'{count} is not the length of {key}')
    return found


def _number(value: typing.Any, limit: int = 2 ** 32) -> int:
    if type(value) is not int or not 0 <= value < limit:
        raise ValueError(f'{errors.quote(value)} is not a number below '
                         f'{limit}')
    return value


def _text(value: typing.Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f'{errors.quote(value)} is not a text')
    return value


def _address(value: typing.Any) -> model.PciAddress | None:
    """Return an address; it is empty on HGX H100 and later."""
    return model.PciAddress.parse(value) if _text(value) else None
