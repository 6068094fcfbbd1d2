# SPDX-License-Identifier: Apache-2.0
"""``nova-accel host check``: an audit of sysfs, Placement and libvirt.

nova-compute runs the same audit periodically, and logs its findings.
"""

import collections.abc
import contextlib
import functools
import importlib
import types
import typing

from oslo_config import cfg

from nova_accel.cmd import placement
from nova_accel.core import errors
from nova_accel.core import held_devices
from nova_accel.core import model
from nova_accel.core.assignment import consistency
from nova_accel.core.placement import inventory
from nova_accel.core.placement import queries
from nova_accel.host import libvirt_xml


def audit(host: model.Host, name: str | None, get: queries.Get,
          conf: cfg.ConfigOpts,
          ) -> tuple[str, tuple[consistency.Finding, ...]]:
    """Return the name of the compute node, and the findings of an audit.

    :param host: the Host that the command runs on
    :param name: name of the compute node, None for the host name that
        libvirt reports
    :param get: reads from Placement
    :raises errors.AccelError: if libvirt or Placement cannot be queried
    """
    libvirt = _load_libvirt()
    with _translated_errors(libvirt), _connect(libvirt, conf) as connection:
        name = name or connection.getHostname()
        return name, compare(host, libvirt, connection, get, name)


def compare(host: model.Host, libvirt: types.ModuleType,
            connection: typing.Any, get: queries.Get, name: str,
            ) -> tuple[consistency.Finding, ...]:
    """Return the findings of an audit.

    :param connection: libvirt.virConnect
    :param get: reads from Placement
    :param name: name of the compute node
    """
    return consistency.compare(consistency.gather(
        inventory.NodeInventory(host, placement.find(get, name)),
        functools.partial(queries.allocations, get),
        lambda: _read(connection, libvirt)))


def held(conf: cfg.ConfigOpts) -> set[model.Address]:
    """Return the addresses that libvirt's domains hold.

    :raises errors.AccelError: if libvirt cannot be queried
    """
    libvirt = _load_libvirt()
    with _translated_errors(libvirt), _connect(libvirt, conf) as connection:
        return {device.address for hostdevs in _read(
            connection, libvirt).values() for device in hostdevs}


def _read(connection: typing.Any, libvirt: types.ModuleType,
          ) -> held_devices.Held:
    return libvirt_xml.read(connection.listAllDomains(
        libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE
        | libvirt.VIR_CONNECT_LIST_DOMAINS_INACTIVE), libvirt)


def _load_libvirt() -> types.ModuleType:
    try:
        libvirt = importlib.import_module('libvirt')
    except ImportError as error:
        raise errors.AccelError(
            'libvirt', f'its Python module cannot be loaded: {error}',
            'install libvirt-python, or run this with the Python of '
            'nova-compute') from None
    # Without a handler, libvirt also prints each error that it raises.
    libvirt.registerErrorHandler(lambda _context, _error: None, None)
    return libvirt


@contextlib.contextmanager
def _connect(libvirt: types.ModuleType, conf: cfg.ConfigOpts,
             ) -> collections.abc.Iterator[typing.Any]:
    conf.register_opt(cfg.StrOpt('connection_uri', default=''), 'libvirt')
    connection = libvirt.openReadOnly(conf.libvirt.connection_uri
                                      or 'qemu:///system')
    try:
        yield connection
    finally:
        connection.close()


@contextlib.contextmanager
def _translated_errors(libvirt: types.ModuleType,
                       ) -> collections.abc.Iterator[None]:
    """Raise exceptions of libvirt as AccelError."""
    try:
        yield
    except libvirt.libvirtError as error:
        raise errors.AccelError(
            'libvirt', f'cannot be queried: {error}', 'run this on the '
            'compute host as a user with access to libvirt, and check '
            '[libvirt] connection_uri in nova.conf') from None
