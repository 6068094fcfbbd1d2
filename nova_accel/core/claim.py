# SPDX-License-Identifier: Apache-2.0
"""Claim: the devices of a server whose libvirt domain is not defined."""

import collections.abc
import dataclasses
import json
import typing

from nova_accel.core import hostdev
from nova_accel.core import model

_VERSION = 1


@dataclasses.dataclass(frozen=True)
class Claim:
    """Devices that a server gets, or that it keeps without a domain.

    :param server: uuid
    :param kept: whether the server keeps the devices until a domain of it has
        them, or Placement has no allocations for them any more
    :param is_new: whether the server has not had the devices before
    """

    server: str
    hostdevs: hostdev.Hostdevs
    kept: bool = False
    is_new: bool = dataclasses.field(default=False, compare=False)

    @property
    def addresses(self) -> set[model.Address]:
        """The addresses of the devices."""
        return {device.address for device in self.hostdevs}


def dumps(claim: Claim) -> str:
    """Return a kept claim as JSON."""
    return json.dumps({
        'version': _VERSION, 'server': claim.server, 'new': claim.is_new,
        'hostdevs': [{
            'address': str(device.address), 'alias': device.alias,
            'managed': device.managed} for device in claim.hostdevs]})


def loads(text: str) -> Claim:
    """Return a kept claim from its JSON.

    :raises ValueError: if it is not one of this version
    """
    found = json.loads(text)
    try:
        if found['version'] != _VERSION:
            raise ValueError(f'version {found["version"]!r}')
        return Claim(str(found['server']), tuple(
            map(_hostdev, found['hostdevs'])), kept=True,
            is_new=bool(found.get('new')))
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f'{type(error).__name__}: {error}') from None


def _hostdev(found: collections.abc.Mapping[str, typing.Any],
             ) -> hostdev.Hostdev:
    address, alias = found['address'], found['alias']
    if not isinstance(alias, str):
        raise ValueError(f'alias {alias!r}')
    return hostdev.Hostdev(
        model.PciAddress.parse(address) if ':' in address
        else model.MdevAddress(address), alias, bool(found['managed']))
