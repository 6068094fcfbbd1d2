# SPDX-License-Identifier: Apache-2.0
"""The columns of the matrix: kinds of devices."""

import collections
import collections.abc
import dataclasses
import json
import pathlib
import typing

from tests.functional import cloud

Group = dict[str, typing.Any]

CARD = '0000:44:00.0'
QAT = '0000:85:00.0'


@dataclasses.dataclass(frozen=True)
class Kind:
    """A machine, and profiles for its devices.

    Two small servers, or one large server, fill a host.

    :param name: heading of the column
    :param recording: the recorded host
    :param specs: entries of ``device_spec``
    :param units: by address of the device, the functions that a server gets
        or on which mdevs are created
    :param small: groups of the profile ``small``
    :param large: groups of the profile ``large``
    :param other: groups of the profile ``other``; small and large do not use
        its resource classes
    :param apart: groups of the profile ``apart``; it requires one NUMA node
        for devices that are on different nodes
    :param alike: addresses of devices that should have the same model
    """

    name: str
    recording: pathlib.Path
    specs: tuple[dict[str, typing.Any], ...]
    units: collections.abc.Mapping[str, frozenset[str]]
    small: tuple[Group, ...]
    large: tuple[Group, ...]
    other: tuple[Group, ...]
    apart: tuple[Group, ...]
    alike: tuple[str, ...] = ()

    def entries(self, **more) -> list[str]:
        """Return the entries of ``device_spec``.

        :param more: keys to add to the entries that are not for mdevs
        """
        return [json.dumps(spec if 'mdev_type' in spec else {**spec, **more})
                for spec in self.specs]

    @property
    def profiles(self) -> dict[str, list[Group]]:
        return {name: list(getattr(self, name))
                for name in ('small', 'large', 'other', 'apart')}

    def promise(self, profile: str | None) -> collections.Counter[str]:
        """Return the amounts that a profile requests, by resource class."""
        promised = collections.Counter()
        for group in self.profiles[profile] if profile else ():
            for name, amount in group['resources'].items():
                promised[name] += amount * group.get('count', 1)
        return promised

    def device(self, function: str) -> str:
        """Return the address of the device that a function belongs to."""
        [device] = [device for device, units in self.units.items()
                    if function in units]
        return device


def _group(name, amount=1, count=1, **more) -> Group:
    return {'resources': {f'CUSTOM_{name}': amount}, 'count': count, **more}


def _whole(*addresses: str) -> dict[str, frozenset[str]]:
    return {address: frozenset([address]) for address in addresses}


def _spec(name, **match) -> dict[str, typing.Any]:
    return {**match, 'resource_class': f'CUSTOM_{name}'}


_TOGETHER = {'numa': 'required'}
_A100_VFS = {'vendor_id': '10de', 'product_id': '20b0'}
_QAT_VFS = _spec('QAT', vendor_id='8086', product_id='37c9')
_QAT_UNITS = {QAT: frozenset({'0000:85:01.0', '0000:85:01.1'})}

WHOLE = Kind(
    'PCI device',
    cloud.EIGHT_GPUS,
    (_spec('GPU', address='0000:43:00.0'),
     _spec('GPU', address='0000:44:00.0'),
     _spec('FAR_GPU', address='0000:83:00.0')),
    _whole('0000:43:00.0', '0000:44:00.0', '0000:83:00.0'),
    small=(_group('GPU'),),
    large=(_group('GPU', count=2),),
    other=(_group('FAR_GPU'),),
    apart=(_group('GPU', **_TOGETHER), _group('FAR_GPU', **_TOGETHER)))

# No device has the first alternative, and all have the second.
_ANY_OF = {'any_of': [['CUSTOM_NEWER'], ['CUSTOM_MODEL'], []]}

ALTERNATIVES = dataclasses.replace(
    WHOLE,
    name='Alternatives',
    specs=tuple({**spec, 'traits': 'CUSTOM_MODEL'} for spec in WHOLE.specs),
    small=(_group('GPU', **_ANY_OF),),
    large=(_group('GPU', count=2, **_ANY_OF),),
    other=(_group('FAR_GPU', **_ANY_OF),),
    apart=(_group('GPU', **_TOGETHER, **_ANY_OF),
           _group('FAR_GPU', **_TOGETHER)))

FUNCTION = Kind(
    'VF',
    cloud.A100,
    (_spec('VF', **_A100_VFS, address={'function': '[45]'}), _QAT_VFS),
    {CARD: frozenset({'0000:44:00.4', '0000:44:00.5'}), **_QAT_UNITS},
    small=(_group('VF'),),
    large=(_group('VF', 2),),
    other=(_group('QAT'),),
    apart=(_group('VF', **_TOGETHER), _group('QAT', **_TOGETHER)))

MDEV = Kind(
    'mdev',
    cloud.A100,
    (_spec('VGPU', **_A100_VFS, address={'function': '[45]'},
           mdev_type='nvidia-471'), _QAT_VFS),
    {CARD: frozenset({'0000:44:00.4', '0000:44:00.5'}), **_QAT_UNITS},
    small=(_group('VGPU'),),
    large=(_group('VGPU', 2),),
    other=(_group('QAT'),),
    apart=(_group('VGPU', **_TOGETHER), _group('QAT', **_TOGETHER)))

_CARDS = ('0000:45:00.0', '0000:83:00.0')
_FAR = '0000:81:00.0'

SEVERAL = Kind(
    'Several of each',
    cloud.A100,
    (*(_spec('CARD', address=address) for address in _CARDS),
     _spec('VGPU', **_A100_VFS, mdev_type='nvidia-471'), _QAT_VFS,
     _spec('NVME', address=_FAR, keeps_data='yes')),
    {CARD: frozenset(f'0000:44:00.{function}' for function in range(4, 8)),
     **_whole(*_CARDS, _FAR), **_QAT_UNITS},
    small=(_group('CARD'), _group('VGPU', 2), _group('QAT')),
    large=(_group('CARD', count=2), _group('VGPU', 4), _group('QAT', 2)),
    other=(_group('NVME'),),
    apart=(_group('VGPU', **_TOGETHER), _group('NVME', **_TOGETHER)),
    alike=_CARDS)
