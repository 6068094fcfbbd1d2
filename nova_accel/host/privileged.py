# SPDX-License-Identifier: Apache-2.0
"""Do the operations of nova_accel.host.operations on this machine as root.

The caller is not trusted: an attacker may control nova-compute. The caller
names devices, and a bitstream that nova-compute owns. The path of sysfs is
fixed here. The commands are those of root's configuration, read here.
"""

import collections.abc
import glob
import os
import typing

from oslo_config import cfg
from oslo_privsep import capabilities
from oslo_privsep import priv_context

from nova_accel import conf
from nova_accel.core import kind
from nova_accel.core.device_spec import spec_entry
from nova_accel.host import commands
from nova_accel.host import fpga_program
from nova_accel.host import operations
from nova_accel.host import tree as trees
from nova_accel.host import trust

_SYSFS = '/sys'
# A folder with a random name is made there.
_TEMPORARY = '/var/tmp'  # nosec B108

#: Where root keeps configuration. In other places, a file that only root can
#: write may have content from other users: /proc shows the words of commands,
#: and /lib/firmware has bitstreams for a while.
_CONFIGURATION = ('/etc', '/usr/share')


def _context(name: str, section: str) -> priv_context.PrivContext:
    return priv_context.PrivContext(
        'nova_accel', cfg_section=section, pypath=f'{__name__}.{name}',
        capabilities=[capabilities.CAPS_BYNAME[capability]
                      for capability in conf.CAPABILITIES[section]])


# Attributes of sysfs belong to root. Those of the kernel's PCI core need no
# further capability.
context = _context('context', 'nova_accel_privileged')
# ``reset_subordinate`` requires CAP_SYS_ADMIN (drivers/pci/pci-sysfs.c). So
# may drivers of mdevs and vGPUs that are not part of the kernel.
admin_context = _context('admin_context', 'nova_accel_privileged_admin')
# Runs commands of root's configuration. Only nova-compute can read the folder
# of bitstreams.
program_context = _context('program_context', 'nova_accel_privileged_program')


# A cleaner can take hours: it must not hold up other operations.
clean_context = _context('clean_context', 'nova_accel_privileged_clean')


CONTEXTS = context, admin_context, program_context, clean_context


class _ByRoot(operations.Trusted):
    """Write only to sysfs; run and read only what root's files permit."""

    _temporary = _TEMPORARY

    def _set(self, text: str, *parts: str) -> None:
        operations.write(os.path.join(self._root, *parts), text, _check_sysfs)

    def _open(self, bitstream: str) -> int:
        owner = _owner(_configuration())

        def check(file: int) -> None:
            if os.fstat(file).st_uid != owner:
                raise ValueError(f'{bitstream!r} does not belong to the owner '
                                 'of state_path')

        return trust.open_regular(bitstream, os.O_RDONLY, check)

    def _open_device(self, path: str) -> int:
        return trust.open_device(f'/{path}', os.O_RDWR)

    def program_by_command(self, template: collections.abc.Sequence[str],
                           bitstream: str, address: str, region: str,
                           timeout: float) -> commands.Ended:
        if tuple(template) not in _programs(_configuration()):
            raise ValueError(
                f'{list(template)} is not the "program" of an entry in the '
                'current configuration; restart nova-compute')
        trust.check_only_root_writes(template[0])
        return super().program_by_command(template, bitstream, address, region,
                                          timeout)

    def _permit(self, definition: str, option: str) -> None:
        """Check that the current configuration has the value."""
        value = getattr(_configuration().nova_accel, option)
        if definition not in (value if isinstance(value, list) else [value]):
            raise ValueError(f'this is no "{option}" of the current '
                             'configuration; restart nova-compute')


def _check_sysfs(file: int) -> None:
    if not trees.is_sysfs(file):
        raise ValueError(f'it is not on a sysfs; {_SYSFS} must be one')


def _configuration() -> cfg.ConfigOpts:
    """Return root's current configuration.

    This process was started with the names of the files, and the caller may
    have chosen them. So the values read at the start are not used: each file
    is checked and read again.

    :raises OSError: if a file does not exist
    :raises ValueError: if others than root can change it, or it is invalid
    """
    files = [os.path.realpath(file)
             for file in dict.fromkeys(_files(cfg.CONF))]
    for file in files:
        if not file.startswith(tuple(f'{place}/' for place in _CONFIGURATION)):
            raise ValueError(f'configuration {file!r} is not below '
                             + ' or '.join(_CONFIGURATION))
        trust.check_only_root_writes(file)
    configuration = cfg.ConfigOpts()
    try:
        configuration([], default_config_files=files, default_config_dirs=[])
    except cfg.Error as error:
        raise ValueError(str(error)) from None
    conf.register_opts(configuration)
    configuration.register_opt(cfg.StrOpt('state_path', default=''))
    return configuration


def _files(started: cfg.ConfigOpts) -> collections.abc.Iterator[str]:
    """Yield the names of the files that nova-compute reads.

    oslo.privsep does not pass on the directory that oslo.config reads without
    ``--config-dir``: ``nova.conf.d`` beside ``nova.conf``.
    """
    yield from conf.files(started)
    if not started.config_dir:
        for file in started.config_file or ():
            yield from sorted(glob.glob(f'{glob.escape(file)}.d/*.conf'))


def _owner(configuration: cfg.ConfigOpts) -> int:
    """Return the uid of nova-compute: only its own bitstreams are read.

    :raises ValueError: if the configuration does not set state_path
    """
    if not configuration.state_path:
        raise ValueError('the configuration does not set state_path, whose '
                         'owner must own each bitstream')
    return os.stat(configuration.state_path).st_uid


def _not_opened(*_arguments: object) -> typing.NoReturn:
    """The ``open`` of a kind of which only the keys are used."""
    raise NotImplementedError


def _programs(configuration: cfg.ConfigOpts,
              ) -> set[fpga_program.Program | None]:
    """Return the "program" of each entry, None for one without."""
    entries, _others = spec_entry.parse_all(
        configuration.nova_accel.device_spec, {'fpga': kind.Kind(
            open=_not_opened, keys=fpga_program.KEYS)})
    return {entry.setting(fpga_program.PROGRAM) for entry in entries}


_machine = _ByRoot(_SYSFS)


@context.entrypoint
def set_num_vfs(card: str, number: int) -> None:
    _machine.set_num_vfs(card, number)


@context.entrypoint
def reset_function(address: str) -> None:
    _machine.reset_function(address)


@context.entrypoint
def set_reset_methods(address: str,
                      methods: collections.abc.Iterable[str]) -> None:
    _machine.set_reset_methods(address, methods)


@context.entrypoint
def reset_by_vfio(addresses: collections.abc.Iterable[str]) -> None:
    _machine.reset_by_vfio(addresses)


@context.entrypoint
def unbind_driver(address: str) -> None:
    _machine.unbind_driver(address)


@context.entrypoint
def probe_driver(address: str) -> None:
    _machine.probe_driver(address)


@admin_context.entrypoint
def reset_behind(bridge: str) -> None:
    _machine.reset_behind(bridge)


@admin_context.entrypoint
def create_mdev(parent: str, mdev_type: str, address: str) -> None:
    _machine.create_mdev(parent, mdev_type, address)


@admin_context.entrypoint
def remove_mdev(address: str) -> None:
    _machine.remove_mdev(address)


@admin_context.entrypoint
def set_vgpu_type(function: str, number: int) -> None:
    _machine.set_vgpu_type(function, number)


@clean_context.entrypoint
def clean(definition: str, address: str, region: str,
          ) -> tuple[str, int | None, bytes]:
    return _machine.clean(definition, address, region)


@program_context.entrypoint
def program_by_manager(manager: str, bitstream: str) -> None:
    _machine.program_by_manager(manager, bitstream)


@program_context.entrypoint
def program_by_command(template: collections.abc.Sequence[str],
                       bitstream: str, address: str, region: str,
                       timeout: float) -> commands.Ended:
    return _machine.program_by_command(template, bitstream, address, region,
                                       timeout)


@program_context.entrypoint
def probe_firmware(definition: str, address: str) -> str:
    return _machine.probe_firmware(definition, address)


@program_context.entrypoint
def run_fabric_manager(definition: str, operation: str,
                       partitions: collections.abc.Collection[int] = (),
                       ) -> commands.Ended:
    return _machine.run_fabric_manager(definition, operation, partitions)


@program_context.entrypoint
def read_modules(definition: str) -> commands.Ended:
    return _machine.read_modules(definition)
