# SPDX-License-Identifier: Apache-2.0
"""What is done to devices: writes to sysfs, and the programming of FPGAs.

The kernel's own sysfs is root's to write to, which
:mod:`nova_accel.host.privileged` does. A copy of one is for trials, and is
written to as who has it: no rights are lent for that.
"""

import collections.abc
import contextlib
import errno
import os
import re
import shutil
import tempfile
import uuid

from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.device_spec import reset_methods
from nova_accel.host import commands
from nova_accel.host import tree as trees
from nova_accel.host import trust

# NumVFs and TotalVFs are 16 bits wide (PCI Express Base Specification, SR-IOV
# Extended Capability).
_MAX_VFS = 0xffff


def on(tree: trees.Tree) -> 'Operations':
    """What can be done to the devices of a Tree.

    :raises errors.AssignmentError: if it is a recording
    """
    sysfs = trees.mount(tree)
    if trees.is_live(tree):
        # oslo.privsep brings much along that the command does without. The
        # module has the same functions.
        from nova_accel.host import privileged
        return privileged
    return Operations(sysfs)


class Operations:
    """What can be done to the devices of one sysfs, with the rights we have.

    Nothing is taken on trust: what a path is made of is checked here.

    :param sysfs: where it is mounted, or a copy of one
    """

    def __init__(self, sysfs: str) -> None:
        self._root = sysfs

    def create_mdev(self, parent: str, mdev_type: str, address: str) -> None:
        """Have a driver make a mediated device.

        Source: Documentation/ABI/testing/sysfs-bus-vfio-mdev (``create``).

        :param parent: PCI address, or a name in /sys/class/mdev_bus
        :param address: the uuid that it is to have
        :raises ValueError: if an argument is not what it should be
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
        :raises ValueError: if an argument is not what it should be
        :raises OSError: if the driver refuses: somebody has it open
        """
        self._set('1', 'bus/mdev/devices', str(uuid.UUID(address)), 'remove')

    def set_vgpu_type(self, function: str, number: int) -> None:
        """Set the vGPU type of a virtual function, or clear it.

        Source: NVIDIA, Virtual GPU Software User Guide, on the vendor-specific
        VFIO framework (``current_vgpu_type``).

        :param function: PCI address
        :param number: of the type; 0 for none
        :raises ValueError: if an argument is not what it should be
        :raises OSError: if the driver refuses: the card has no room, a guest
            has the function, or there is a type already
        """
        if type(number) is not int or number < 0:
            raise ValueError(f'not the number of a vGPU type: {number!r}')
        self._set(str(number), _function(function), 'nvidia/current_vgpu_type')

    def set_num_vfs(self, card: str, number: int) -> None:
        """Have so many virtual functions of a card enabled.

        Source: Documentation/ABI/testing/sysfs-bus-pci (``sriov_numvfs``).

        :param card: PCI address of the physical function
        :param number: 0 where there are any, any where there are none
        :raises ValueError: if an argument is not what it should be
        :raises OSError: if the driver refuses
        """
        if type(number) is not int or not 0 <= number <= _MAX_VFS:
            raise ValueError(f'not a number of virtual functions: {number!r}')
        self._set(str(number), _function(card), 'sriov_numvfs')

    def reset_function(self, address: str) -> None:
        """Reset a function, and no other.

        Source: Documentation/ABI/testing/sysfs-bus-pci (``reset``).

        :raises ValueError: if an argument is not what it should be
        :raises OSError: if it was not reset
        """
        self._set('1', _function(address), 'reset')

    def set_reset_methods(self, address: str,
                          methods: collections.abc.Iterable[str]) -> None:
        """Set which methods a reset of a function tries.

        Source: Documentation/ABI/testing/sysfs-bus-pci (``reset_method``).

        :param methods: the kernel's names, the first first; none for all that
            there are, in the kernel's order
        :raises ValueError: if an argument is not what it should be
        :raises OSError: if the function has no such method
        """
        methods = tuple(methods)
        if not reset_methods.METHODS.issuperset(methods):
            raise ValueError(f'not methods to reset a function: {methods!r}')
        self._set(' '.join(methods) or 'default', _function(address),
                  'reset_method')

    def reset_behind(self, bridge: str) -> None:
        """Reset all that is behind a bridge.

        Source: Documentation/ABI/testing/sysfs-bus-pci
        (``reset_subordinate``).

        :param bridge: its PCI address
        :raises ValueError: if an argument is not what it should be
        :raises OSError: if it was not reset
        """
        self._set('1', _function(bridge), 'reset_subordinate')

    def unbind_driver(self, address: str) -> None:
        """Take a function from the driver that has it.

        Source: Documentation/ABI/testing/sysfs-bus-pci (``unbind``).

        :raises ValueError: if an argument is not what it should be
        :raises OSError: if no driver has it, or the driver refuses
        """
        self._set(str(model.PciAddress.parse(address)), _function(address),
                  'driver/unbind')

    def probe_driver(self, address: str) -> None:
        """Have a driver take a function that none has.

        Source: drivers/base/bus.c (``drivers_probe``).

        :raises ValueError: if an argument is not what it should be
        :raises OSError: if the driver refuses
        """
        self._set(str(model.PciAddress.parse(address)), 'bus/pci',
                  'drivers_probe')

    def program_by_manager(self, manager: str, bitstream: str) -> None:
        """Have an FPGA manager program a bitstream.

        The kernel looks for the file in /lib/firmware, beside the sysfs, where
        it is only while it is being programmed, and only for root.

        Sources: drivers/fpga/fpga-mgr.c of the kernels that have the
        ``firmware`` attribute (its name is at most 255 bytes),
        Documentation/driver-api/firmware/fw_search_path.rst.

        :param manager: its name, ``fpga0``
        :param bitstream: the file
        :raises ValueError: if an argument is not what it should be
        :raises OSError: if the kernel refuses
        """
        if not re.fullmatch(r'[\w-]{1,64}', manager, re.ASCII):
            raise ValueError(f'not the name of an FPGA manager: {manager!r}')
        folder = os.path.join(os.path.dirname(os.path.abspath(self._root)),
                              'lib/firmware')
        name = f'nova_accel-{manager}-{uuid.uuid4()}.bin'
        with self._copied(bitstream, folder, name):
            self._set(name, 'class/fpga_manager', manager, 'firmware')

    def program_by_command(self, template: list[str], bitstream: str,
                           address: str, region: str, timeout: float,
                           ) -> tuple[int | None, bytes]:
        """Run a vendor's command that programs a bitstream.

        It gets a copy, which nobody can change meanwhile.

        :param template: its words, with ``{bitstream}``, ``{address}`` and
            ``{region}`` for the other arguments; the first is its path
        :param bitstream: the file
        :param address: PCI address of the card
        :param region: the region's number on the card
        :param timeout: in seconds
        :returns: as :func:`nova_accel.host.commands.run`
        :raises ValueError: if an argument is not what it should be
        :raises OSError: if the command cannot be started
        """
        values = {'{address}': str(model.PciAddress.parse(address)),
                  '{region}': str(int(region))}
        with (tempfile.TemporaryDirectory(
                  prefix='nova_accel-', dir=self._temporary) as folder,
              self._copied(bitstream, folder, os.path.basename(
                  bitstream)) as values['{bitstream}']):
            return commands.run([template[0], *(
                _filled(word, values) for word in template[1:])], timeout)

    #: Where a command's copy is; None for where the system has such.
    _temporary: str | None = None

    def _set(self, text: str, *parts: str) -> None:
        """Write an attribute, which no link may lead out of the sysfs to."""
        path = os.path.join(self._root, *parts)
        root = os.path.realpath(self._root)
        if os.path.commonpath([root, os.path.realpath(path)]) != root:
            raise OSError(errno.EXDEV, f'{path} leads out of {self._root}')
        write(path, text)

    @contextlib.contextmanager
    def _copied(self, bitstream: str, folder: str, name: str):
        """Where a copy of a bitstream is, for a while, and ours alone."""
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


def _parent(text: str) -> str:
    try:
        return _function(text)
    except ValueError:
        if not naming.is_parent_name(text):
            raise
        return f'class/mdev_bus/{text}'


def _function(address: str) -> str:
    return f'bus/pci/devices/{model.PciAddress.parse(address)}'


def _filled(word: str, values: dict[str, str]) -> str:
    return re.sub('|'.join(map(re.escape, values)),
                  lambda match: values[match[0]], word)


def write(path: str, text: str,
          check: collections.abc.Callable[[int], None] | None = None) -> None:
    """Write an attribute, which has to be there.

    :param check: as for :func:`trust.open_regular`
    """
    descriptor = trust.open_regular(path, os.O_WRONLY, check)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
