# SPDX-License-Identifier: Apache-2.0
"""The keys that every ``device_spec`` entry can have, and their readers.

A reader takes the value of a key, None if absent, and returns fields of an
Entry. It raises ValueError with what is wrong with the value.
"""

import collections.abc
import functools
import re
import typing

from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.device_spec import cleaner
from nova_accel.core.device_spec import firmware_probe
from nova_accel.core.device_spec import reset_methods

#: The value of num_vfs for as many VFs as a card can have.
ALL: typing.Final = 'all'

#: The parts of a PCI address: name, maximum, and number of digits.
ADDRESS_PARTS = (('domain', 0xffffffff, 4), ('bus', 0xff, 2),
                 ('slot', 0x1f, 2), ('function', 0x7, 1))

# Takes the value of a key, and returns fields of an Entry.
_Reader = collections.abc.Callable[[object], dict[str, typing.Any]]

# As in strutils of oslo.utils, which core does not import.
_TRUE = frozenset({'true', 'yes', 'on', '1', 't', 'y'})
_FALSE = frozenset({'false', 'no', 'off', '0', 'f', 'n'})


def _id_reader(key: str) -> _Reader:
    def read(value: object) -> dict[str, str | None]:
        if value is None or isinstance(value, str) and value.strip() == '*':
            return {key: None}
        try:
            if not isinstance(value, str):
                raise ValueError
            number = int(value.strip(), 16)
        except ValueError:
            raise ValueError('is not a hexadecimal number in a string'
                             ) from None
        if not 0 <= number <= 0xffff:
            raise ValueError('is more than ffff')
        return {key: f'{number:04x}'}
    return read


def _read_address(value: object) -> dict[str, typing.Any]:
    if value is None:
        value = '*'
    if isinstance(value, str):
        return _read_glob(value)
    if isinstance(value, dict):
        return _read_regexes(value)
    raise ValueError('is neither a string nor an object')


def _read_glob(text: str) -> dict[str, typing.Any]:
    """Read ``domain:bus:slot.function`` with ``*`` for any part.

    Leading parts can be left out, ``:02:`` or ``02.*``, as in Nova.
    """
    front, _dot, function = text.partition('.')
    fields = [field.strip() for field in front.split(':')]
    if len(fields) > 3:
        raise ValueError('has more than domain:bus:slot.function')
    fields = [''] * (3 - len(fields)) + fields + [function.strip()]
    patterns, numbers = [], []
    for field, (part, limit, digits) in zip(fields, ADDRESS_PARTS,
                                            strict=True):
        if field in ('', '*'):
            patterns.append(re.compile(''))
            continue
        try:
            number = int(field, 16)
        except ValueError:
            raise ValueError(f'has a {part} that is not hexadecimal'
                             ) from None
        if not 0 <= number <= limit:
            raise ValueError(f'has a {part} of more than {limit:x}')
        numbers.append(number)
        patterns.append(re.compile(f'{number:0{digits}x}$'))
    single = model.PciAddress(*numbers) if len(numbers) == 4 else None
    return {'address': tuple(patterns), 'single': single}


def _read_regexes(parts: dict[str, object]) -> dict[str, typing.Any]:
    names = [part for part, _limit, _digits in ADDRESS_PARTS]
    unknown = sorted(set(parts) - set(names))
    if unknown:
        raise ValueError(f'has {errors.quote(unknown[0])}; an object may '
                         f'have {", ".join(names)}')
    patterns = []
    for name in names:
        pattern = parts.get(name, '')
        if not isinstance(pattern, str):
            raise ValueError(f'has a {name} that is not a string')
        patterns.append(re.compile(pattern))
    return {'address': tuple(patterns), 'single': _whole_address(parts)}


# Most entries have the same few patterns.
@functools.lru_cache(maxsize=1024)
def is_any(address: tuple[re.Pattern[str], ...], *parts: str) -> bool:
    """Whether patterns match every value of some parts of an address.

    :param address: a pattern for each of :data:`ADDRESS_PARTS`
    :param parts: their names; by default, those of the domain 0000, in which
        most hosts have all devices
    """
    return all(
        pattern.match(f'{number:0{digits}x}')
        for pattern, (part, limit, digits) in zip(address, ADDRESS_PARTS,
                                                  strict=True)
        if not parts or part in parts
        for number in ((0,) if part == 'domain' else range(limit + 1)))


def _whole_address(parts: dict[str, object]) -> model.PciAddress | None:
    """Return the address if all parts are plain numbers, else None."""
    try:
        return model.PciAddress.parse(
            '{domain}:{bus}:{slot}.{function}'.format(**parts))
    except (KeyError, ValueError):
        return None


def _read_parent(value: object) -> dict[str, str]:
    if value is None:
        return {'parent': ''}
    if not isinstance(value, str) or not naming.is_parent_name(value):
        raise ValueError('is not the name of a device')
    return {'parent': value}


def _read_resource_class(value: object) -> dict[str, str | None]:
    if value is None:
        return {'resource_class': None}
    if not isinstance(value, str) or not value.strip():
        raise ValueError('is not a name')
    name = naming.normalise_resource_class(value)
    if not naming.is_resource_class(name):
        raise ValueError('is a class that Nova itself counts, or too long')
    return {'resource_class': name}


def _read_traits(value: object) -> dict[str, frozenset[str]]:
    if value is None:
        value = []
    names = value.split(',') if isinstance(value, str) else value
    if not isinstance(names, list) or not all(
            isinstance(name, str) for name in names):
        raise ValueError('is neither a list of names nor names with commas')
    traits = frozenset(naming.normalise_trait(name)
                       for name in names if name.strip())
    if not all(map(naming.is_trait, traits)):
        raise ValueError('has a name that is too long')
    if own := sorted(filter(naming.is_own_trait, traits)):
        raise ValueError(f'has {own[0]}, which only nova_accel itself sets')
    return {'traits': traits}


def _read_num_vfs(value: object,
                  ) -> dict[str, int | typing.Literal['all'] | None]:
    if value is None:
        return {'num_vfs': None}
    if value == ALL:
        return {'num_vfs': ALL}
    if not isinstance(value, (int, str)) or isinstance(value, bool):
        raise ValueError('is neither a number nor "all"')
    try:
        number = int(value)
    except ValueError:
        raise ValueError('is neither a number nor "all"') from None
    if number < 1:
        raise ValueError('is less than 1')
    return {'num_vfs': number}


def _read_reset(value: object) -> dict[str, str]:
    if value is None:
        return {'reset': reset_methods.REQUIRED}
    if value not in reset_methods.CHOICES:
        raise ValueError('is none of ' + ', '.join(
            f'"{choice}"' for choice in reset_methods.CHOICES))
    return {'reset': value}


def _read_clean(value: object) -> dict[str, str]:
    if value is None:
        return {'clean': ''}
    if not isinstance(value, str) or not cleaner.is_name(value):
        raise ValueError('is not the name of a cleaner')
    return {'clean': value}


def _read_firmware_probe(value: object) -> dict[str, str]:
    if value is None:
        return {'firmware_probe': ''}
    if not isinstance(value, str) or not firmware_probe.is_name(value):
        raise ValueError('is not the name of a firmware_probe: lower-case '
                         'letters and digits')
    return {'firmware_probe': value}


def _flag_reader(key: str, default: bool | None) -> _Reader:
    def read(value: object) -> dict[str, bool | None]:
        if value is None:
            return {key: default}
        text = str(value).strip().lower()
        if text not in _TRUE | _FALSE:
            raise ValueError('is neither "yes" nor "no"')
        return {key: text in _TRUE}
    return read


#: Readers by key.
READERS: dict[str, _Reader] = {
    'vendor_id': _id_reader('vendor_id'),
    'product_id': _id_reader('product_id'),
    'address': _read_address,
    'parent': _read_parent,
    'resource_class': _read_resource_class,
    'traits': _read_traits,
    'managed': _flag_reader('managed', None),
    'live_migratable': _flag_reader('live_migratable', None),
    'num_vfs': _read_num_vfs,
    'reset': _read_reset,
    'one_time_use': _flag_reader('one_time_use', False),
    'clean': _read_clean,
    'keeps_data': _flag_reader('keeps_data', False),
    'compare_firmware': _flag_reader('compare_firmware', True),
    'firmware_probe': _read_firmware_probe,
}
