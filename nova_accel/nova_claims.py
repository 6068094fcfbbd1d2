# SPDX-License-Identifier: Apache-2.0
"""Devices that Nova itself claims, by ``[pci]`` and ``[devices]``.

Both go on working beside nova_accel; a device can only be the one's or the
other's.
"""

import dataclasses

from oslo_config import cfg

from nova_accel.core import model
from nova_accel.core.device_spec import spec_entry


@dataclasses.dataclass(frozen=True)
class MdevClaim:
    """One of ``[devices] enabled_mdev_types``; a claim as an Entry is.

    :param addresses: the type's ``device_addresses``, or empty where any
        device that has the type will do
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


def claims(conf: cfg.ConfigOpts) -> list[spec_entry.Entry | MdevClaim]:
    """What Nova claims of this host."""
    found: list[spec_entry.Entry | MdevClaim] = list(spec_entry.parse_foreign(
        conf.pci.device_spec, '[pci] device_spec'))
    for mdev_type in conf.devices.enabled_mdev_types:
        # Nova makes these groups while it starts, for enabled types only.
        group = f'mdev_{mdev_type}'
        found.append(MdevClaim(mdev_type, frozenset(
            conf[group].device_addresses if group in conf else ())))
    return found


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make Nova's options known where Nova is not there to do it.

    For the command line, after the configuration files have been read. The
    names of old are Nova's (nova/conf/pci.py and devices.py, read in Nova 34).
    """
    conf.register_opt(cfg.MultiStrOpt(
        'device_spec', default=[], deprecated_opts=[
            cfg.DeprecatedOpt('passthrough_whitelist', 'pci'),
            cfg.DeprecatedOpt('pci_passthrough_whitelist', 'DEFAULT')]),
        'pci')
    conf.register_opt(cfg.ListOpt('enabled_mdev_types', default=[],
                                  deprecated_name='enabled_vgpu_types'),
                      'devices')
    for mdev_type in conf.devices.enabled_mdev_types:
        conf.register_opt(cfg.ListOpt('device_addresses', default=[],
                                      deprecated_group=f'vgpu_{mdev_type}'),
                          f'mdev_{mdev_type}')
