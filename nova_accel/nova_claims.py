# SPDX-License-Identifier: Apache-2.0
"""Devices that Nova itself uses, as configured in ``[pci]`` and ``[devices]``.

Both keep working beside nova_accel. A device can be used either by Nova or by
nova_accel.
"""

import dataclasses

from oslo_config import cfg

from nova_accel.core import model
from nova_accel.core.device_spec import spec_entry


@dataclasses.dataclass(frozen=True)
class MdevClaim:
    """One type of ``[devices] enabled_mdev_types``; a claim like an Entry.

    :param addresses: the type's ``device_addresses``, or empty for every
        device that supports the type
    """

    mdev_type: str
    addresses: frozenset[str]

    @property
    def label(self) -> str:
        return f'[devices] enabled_mdev_types {self.mdev_type}'

    def matches(self, function: model.Function) -> bool:
        if self.addresses:
            return str(function.address) in self.addresses
        return any(self.mdev_type == mdev_type.name
                   for mdev_type in function.mdev_types)


def claims(conf: cfg.ConfigOpts) -> list[spec_entry.Claim]:
    """Return the entries by which Nova claims devices of this host."""
    found: list[spec_entry.Claim] = list(spec_entry.parse_foreign(
        conf.pci.device_spec, '[pci] device_spec'))
    for mdev_type in conf.devices.enabled_mdev_types:
        # Nova registers these groups at start, for enabled types only.
        group = f'mdev_{mdev_type}'
        found.append(MdevClaim(mdev_type, frozenset(
            conf[group].device_addresses if group in conf else ())))
    return found


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register Nova's options in a program that does not import Nova.

    Called by the command, after the configuration files have been read. The
    deprecated names are Nova's (nova/conf/pci.py and devices.py of Nova 34).
    """
    conf.register_opt(cfg.MultiStrOpt(
        'device_spec', default=[], deprecated_opts=[
            cfg.DeprecatedOpt('passthrough_whitelist', 'pci'),
            cfg.DeprecatedOpt('pci_passthrough_whitelist', 'DEFAULT')]),
        'pci')
    conf.register_opt(cfg.MultiStrOpt(
        'alias', default=[], deprecated_opts=[
            cfg.DeprecatedOpt('pci_alias', 'DEFAULT')]), 'pci')
    conf.register_opt(cfg.ListOpt('enabled_mdev_types', default=[],
                                  deprecated_name='enabled_vgpu_types'),
                      'devices')
    for mdev_type in conf.devices.enabled_mdev_types:
        conf.register_opt(cfg.ListOpt('device_addresses', default=[],
                                      deprecated_group=f'vgpu_{mdev_type}'),
                          f'mdev_{mdev_type}')
