# SPDX-License-Identifier: Apache-2.0
"""Operations on devices: writes to sysfs, and the programming of FPGAs.

They are done with the rights of the process; :mod:`nova_accel.host.operate`
chooses who does them.
"""

import collections.abc
import contextlib
import errno
import fcntl
import os
import re
import shutil
import tempfile
import time
import uuid

from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.device_spec import cleaner
from nova_accel.core.device_spec import command_words
from nova_accel.core.device_spec import firmware_probe
from nova_accel.core.device_spec import reset_methods
from nova_accel.core.fabric import definition as fabric_definition
from nova_accel.core.fabric import module_map
from nova_accel.host import commands
from nova_accel.host import driver_binding
from nova_accel.host import fmpm
from nova_accel.host import trust
from nova_accel.host import vfio_binding

# NumVFs and TotalVFs are 16 bits wide (PCI Express Base Specification, SR-IOV
# Extended Capability).
_MAX_VFS = 0xffff

#: Seconds to wait for the end of processes that a cleaner has left.
_LEFT = 5


#: The fabric managers whose commands run as root. Root does not read entry
#: points, which any package can add.
_MANAGERS = {fabric_definition.DEFAULT: fmpm.MANAGER}


class Operations:
    """Operations on the devices of one sysfs, with the rights of the process.

    Arguments are not trusted: each part of a path is checked here.

    :param sysfs: path of its mount, or of a copy
    """

    def __init__(self, sysfs: str) -> None:
        self._root = sysfs

    def create_mdev(self, parent: str, mdev_type: str, address: str) -> None:
        """Create a mediated device.

        Source: Documentation/ABI/testing/sysfs-bus-vfio-mdev (``create``).

        :param parent: PCI address, or a name in /sys/class/mdev_bus
        :param address: the uuid of the new mdev
        :raises ValueError: if an argument is invalid
        :raises OSError: if the driver refuses
        """
        if not naming.is_mdev_type(mdev_type):
            raise ValueError(f'not the name of an mdev type: {mdev_type!r}')
        self._set(str(uuid.UUID(address)), _parent(parent),
                  'mdev_supported_types', mdev_type, 'create')

    def remove_mdev(self, address: str) -> None:
        """Remove a mediated device.

        Source: Documentation/ABI/testing/sysfs-bus-vfio-mdev (``remove``).

        :param address: its uuid
        :raises ValueError: if an argument is invalid
        :raises OSError: if the driver refuses: a program has it open
        """
        self._set('1', 'bus/mdev/devices', str(uuid.UUID(address)), 'remove')

    def set_vgpu_type(self, function: str, number: int) -> None:
        """Set the vGPU type of a virtual function, or clear it.

        Source: NVIDIA, Virtual GPU Software User Guide, on the vendor-specific
        VFIO framework (``current_vgpu_type``).

        :param function: PCI address
        :param number: the number of the type; 0 for none
        :raises ValueError: if an argument is invalid
        :raises OSError: if the driver refuses: the card is full, a guest has
            the function open, or a type is set already
        """
        if type(number) is not int or number < 0:
            raise ValueError(f'not the number of a vGPU type: {number!r}')
        self._set(str(number), _function(function), 'nvidia/current_vgpu_type')

    def set_num_vfs(self, card: str, number: int) -> None:
        """Set the number of enabled virtual functions of a card.

        Source: Documentation/ABI/testing/sysfs-bus-pci (``sriov_numvfs``).

        :param card: PCI address of the physical function
        :param number: 0 if VFs are enabled, any number if none is
        :raises ValueError: if an argument is invalid
        :raises OSError: if the driver refuses
        """
        if type(number) is not int or not 0 <= number <= _MAX_VFS:
            raise ValueError(f'not a number of virtual functions: {number!r}')
        self._set(str(number), _function(card), 'sriov_numvfs')

    def reset_function(self, address: str) -> None:
        """Reset one function and no other.

        Source: Documentation/ABI/testing/sysfs-bus-pci (``reset``).

        :raises ValueError: if an argument is invalid
        :raises OSError: if it was not reset
        """
        self._set('1', _function(address), 'reset')

    def set_reset_methods(self, address: str,
                          methods: collections.abc.Iterable[str]) -> None:
        """Set the methods that the kernel tries to reset a function.

        Source: Documentation/ABI/testing/sysfs-bus-pci (``reset_method``).

        :param methods: the kernel's names in order of preference; none for
            all methods of the function in the kernel's order
        :raises ValueError: if an argument is invalid
        :raises OSError: if the function has no such method
        """
        methods = tuple(methods)
        if not reset_methods.METHODS.issuperset(methods):
            raise ValueError(f'not methods to reset a function: {methods!r}')
        self._set(' '.join(methods) or 'default', _function(address),
                  'reset_method')

    def reset_behind(self, bridge: str) -> None:
        """Reset all functions behind a bridge.

        Source: Documentation/ABI/testing/sysfs-bus-pci
        (``reset_subordinate``).

        :param bridge: its PCI address
        :raises ValueError: if an argument is invalid
        :raises OSError: if they were not reset
        """
        self._set('1', _function(bridge), 'reset_subordinate')

    def reset_by_vfio(self, addresses: collections.abc.Iterable[str]) -> None:
        """Reset all functions of a slot or bus together through vfio.

        :param addresses: of the functions, which have a vfio driver or none
        :raises ValueError: if an argument is invalid, or if a function is a
            bridge or has a driver of the host
        :raises OSError: if they were not reset
        """
        vfio_binding.reset([*map(model.PciAddress.parse, addresses)],
                           vfio_binding.Host(self._root, self._set,
                                             self._open_device))

    def unbind_driver(self, address: str) -> None:
        """Unbind a function from its driver.

        Source: Documentation/ABI/testing/sysfs-bus-pci (``unbind``).

        :raises ValueError: if an argument is invalid
        :raises OSError: if no driver is bound, or the driver refuses
        """
        self._set(str(model.PciAddress.parse(address)), _function(address),
                  'driver/unbind')

    def probe_driver(self, address: str) -> None:
        """Bind the kernel's choice of driver to a function without one.

        Source: drivers/base/bus.c (``drivers_probe``).

        :raises ValueError: if an argument is invalid
        :raises OSError: if the driver refuses
        """
        self._set(str(model.PciAddress.parse(address)), 'bus/pci',
                  'drivers_probe')

    def program_by_manager(self, manager: str, bitstream: str) -> None:
        """Program a bitstream through an FPGA manager.

        The kernel reads the file from /lib/firmware, beside the sysfs. A copy
        that only root can read is there while it is being programmed.

        Sources: drivers/fpga/fpga-mgr.c of the kernels that have the
        ``firmware`` attribute (its name is at most 255 bytes),
        Documentation/driver-api/firmware/fw_search_path.rst.

        :param manager: its name, ``fpga0``
        :param bitstream: path of the file
        :raises ValueError: if an argument is invalid
        :raises OSError: if the kernel refuses
        """
        if not re.fullmatch(r'[\w-]{1,64}', manager, re.ASCII):
            raise ValueError(f'not the name of an FPGA manager: {manager!r}')
        folder = os.path.join(os.path.dirname(os.path.abspath(self._root)),
                              'lib/firmware')
        name = f'nova_accel-{manager}-{uuid.uuid4()}.bin'
        with self._copied(bitstream, folder, name):
            self._set(name, 'class/fpga_manager', manager, 'firmware')

    def program_by_command(self, template: collections.abc.Sequence[str],
                           bitstream: str, address: str, region: str,
                           timeout: float) -> commands.Ended:
        """Run a vendor's command that programs a bitstream.

        The command gets a copy that no other user can change meanwhile.

        :param template: the words of the command, its path first, with
            ``{bitstream}``, ``{address}`` and ``{region}`` as placeholders
        :param bitstream: path of the file
        :param address: PCI address of the card
        :param region: the region's number on the card
        :param timeout: in seconds
        :raises ValueError: if an argument is invalid
        :raises OSError: if the command cannot be started
        """
        values = {'{address}': str(model.PciAddress.parse(address)),
                  '{region}': str(int(region))}
        with (tempfile.TemporaryDirectory(
                  prefix='nova_accel-', dir=self._temporary) as folder,
              self._copied(bitstream, folder, os.path.basename(
                  bitstream)) as values['{bitstream}']):
            return commands.run(command_words.fill(template, values),
                                timeout)

    def clean(self, definition: str, address: str, region: str,
              ) -> tuple[str, int | None, bytes]:
        """Run the commands of a cleaner on a device.

        While a process that they leave running may still change the device,
        it is not clean, and no other cleaner starts.

        :param definition: a value of ``[nova_accel] cleaner``
        :param address: PCI address of the device
        :param region: the number of the FPGA region on the card
        :returns: the step that failed, ``clean`` or ``verify``, '' if none;
            and how its command ended
        :raises errors.EntryError: if the definition is invalid
        :raises ValueError: if another argument is invalid
        :raises BlockingIOError: if another cleaner is at work on the device,
            or a process that the commands have left
        :raises OSError: if a command cannot be started, or the driver does not
            take the device
        """
        self._permit(definition, 'cleaner')
        known = cleaner.parse(definition)
        function = driver_binding.Function(model.PciAddress.parse(address),
                                           self._root, self._set)
        values = {'{address}': function.address, '{region}': str(int(region))}
        with (_locked(function.path('vendor')) as lock,
              function.bound(known.driver) if known.driver
              else contextlib.nullcontext()):
            for step, words in (('clean', known.clean),
                                ('verify', known.verify)):
                code, output = self._run(command_words.fill(words, values),
                                         known.timeout, lock)
                if code != 0:
                    return step, code, output
        _check_unlocked(function.path('vendor'))
        return '', 0, b''

    def probe_firmware(self, definition: str, address: str) -> str:
        """Run a command that tells the firmware of a device.

        :param definition: a value of ``[nova_accel] firmware_probe``
        :param address: PCI address of the device
        :returns: what it has printed, as one line
        :raises errors.EntryError: if the definition is invalid
        :raises ValueError: if the address is invalid, or the command fails or
            prints nothing
        :raises OSError: if the command cannot be started
        """
        self._permit(definition, 'firmware_probe')
        values = {'{address}': str(model.PciAddress.parse(address))}
        probe = firmware_probe.parse(definition)
        code, output = self._run(command_words.fill(probe.command, values),
                                 probe.timeout)
        text = ' '.join(output.decode('utf-8', 'replace').split())
        if code != 0 or not text:
            raise ValueError(commands.describe(
                probe.command[0], code, output, probe.timeout)
                or f'{errors.quote(probe.command[0])} printed nothing')
        return text

    def run_fabric_manager(self, definition: str, operation: str,
                           partitions: collections.abc.Collection[int] = (),
                           ) -> commands.Ended:
        """Ask a fabric manager to do something.

        :param definition: the value of ``[nova_accel] fabric_manager``
        :param operation: and ``partitions``, as for the manager's
            :attr:`nova_accel.core.fabric.manager.FabricManager.command`
        :raises errors.EntryError: if the definition is invalid
        :raises ValueError: if another argument is invalid
        :raises OSError: if the command cannot be started
        """
        self._permit(definition, 'fabric_manager')
        defined = fabric_definition.parse(definition, _MANAGERS)
        if defined is None:
            raise ValueError('no fabric manager is defined')
        build = _MANAGERS[defined.manager].command
        if build is None:
            raise ValueError(f'manager {defined.manager!r} has no command')
        command = build(defined, operation, partitions)
        return self._run(command.words, command.timeout, limit=command.limit)

    def read_modules(self, definition: str) -> commands.Ended:
        """Run the command that tells which card each module is.

        :param definition: the value of ``[nova_accel] fabric_manager``
        :raises errors.EntryError: if the definition is invalid
        :raises OSError: if the command cannot be started
        """
        self._permit(definition, 'fabric_manager')
        # Its other keys are those of any manager.
        return self._run(fabric_definition.modules_command(definition),
                         module_map.TIMEOUT, limit=module_map.MAX_OUTPUT)

    def _permit(self, definition: str, option: str) -> None:
        """Check that the commands of a value of an option may be run.

        :param option: of ``[nova_accel]``
        :raises ValueError: if they may not
        """

    def _run(self, words: collections.abc.Sequence[str], timeout: float,
             *inherited: int, limit: int = commands.MAX_OUTPUT,
             ) -> commands.Ended:
        return commands.run(words, timeout, inherited, limit)

    #: Folder of the copies for commands; None for the system's default.
    _temporary: str | None = None

    def _set(self, text: str, *parts: str) -> None:
        """Write an attribute; refuse a path that leads out of the sysfs."""
        path = os.path.join(self._root, *parts)
        root = os.path.realpath(self._root)
        if os.path.commonpath([root, os.path.realpath(path)]) != root:
            raise OSError(errno.EXDEV, f'{path} leads out of {self._root}')
        write(path, text)

    def _open_device(self, path: str) -> int:
        """Open a device file of the machine.

        :param path: relative to the machine's root
        """
        return os.open(os.path.join(os.path.dirname(
            os.path.abspath(self._root)), path), os.O_RDWR)

    @contextlib.contextmanager
    def _copied(self, bitstream: str, folder: str, name: str,
                ) -> collections.abc.Iterator[str]:
        """Copy a bitstream for a while; the context's value is its path.

        Only the user of this process can read the copy.
        """
        place = os.path.join(folder, name)
        with open(self._open(bitstream), 'rb') as source:
            os.makedirs(folder, 0o755, exist_ok=True)
            try:
                with open(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL,
                                  0o600), 'wb') as target:
                    shutil.copyfileobj(source, target)
                yield place
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(place)

    def _open(self, bitstream: str) -> int:
        return trust.open_regular(bitstream, os.O_RDONLY)


class Trusted(Operations):
    """Operations that run a command only if no other user can change it."""

    def _run(self, words: collections.abc.Sequence[str], timeout: float,
             *inherited: int, limit: int = commands.MAX_OUTPUT,
             ) -> commands.Ended:
        trust.check_only_root_writes(words[0])
        return super()._run(words, timeout, *inherited, limit=limit)


@contextlib.contextmanager
def _locked(path: str) -> collections.abc.Iterator[int]:
    """Lock a file as long as the descriptor is open in any process.

    Source: flock(2); a child process has the lock as well.

    :raises BlockingIOError: if it is locked
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor
    finally:
        os.close(descriptor)


def _check_unlocked(path: str) -> None:
    """Wait some seconds until no process has a lock of :func:`_locked`.

    A process that was killed has it until it has ended.

    :raises BlockingIOError: if a process has it
    """
    end = time.monotonic() + _LEFT
    while True:
        try:
            with _locked(path):
                return
        except BlockingIOError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def _parent(text: str) -> str:
    try:
        return _function(text)
    except ValueError:
        if not naming.is_parent_name(text):
            raise
        return f'class/mdev_bus/{text}'


def _function(address: str) -> str:
    return f'bus/pci/devices/{model.PciAddress.parse(address)}'


def write(path: str, text: str,
          check: collections.abc.Callable[[int], None] | None = None) -> None:
    """Write an attribute that exists.

    :param check: as for :func:`trust.open_regular`
    """
    descriptor = trust.open_regular(path, os.O_WRONLY, check)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
