# SPDX-License-Identifier: Apache-2.0
"""An NVMe controller, through sysfs and nvme-cli.

nvme-cli's JSON differs between its versions: that of ``sanitize-log`` has the
status as a key in 2.8, for example. So its raw output is read, as the
specification defines it. Its short options differ as well.

Sources: NVM Express Base Specification (Identify, Sanitize Status log page),
nvme-types.h of libnvme; Documentation of nvme-cli 2.3, 2.8 and 2.13.
"""

import collections.abc
import dataclasses
import functools
import os
import pathlib
import re
import subprocess
import time
import typing

from nova_accel.core import errors
from nova_accel.core import model

#: Seconds to wait for the controller, and for its namespaces.
PATIENCE = 60
_PAUSE = 0.2

#: Milliseconds for a format: a day. The cleaner has a time limit of its own.
_FORMAT_TIMEOUT = 86_400_000

#: Bits of OACS, and of CMIC.
_FORMAT, _MANAGEMENT, _VIRTUALIZATION = 1 << 1, 1 << 3, 1 << 7
_MULTI_CONTROLLER = 1 << 1

#: Values of CNS.
_NAMESPACE, _CONTROLLER, _ACTIVE = 0x00, 0x01, 0x02
_ALLOCATED, _CONTROLLERS, _SECONDARY = 0x10, 0x13, 0x15


_Answer = typing.TypeVar('_Answer')


@dataclasses.dataclass(frozen=True)
class Identity:
    """What a controller is able to do.

    :param number: of the controller in its subsystem
    :param sanitize: SANICAP: a bit for each sanitize operation
    :param can_format: whether it has the command Format NVM
    :param can_format_crypto: whether that can also erase cryptographically
    :param unallocated: bytes in no namespace
    """

    number: int
    sanitize: int
    can_format: bool
    can_format_crypto: bool
    unallocated: int
    has_management: bool
    has_virtualization: bool
    is_multiple: bool


@dataclasses.dataclass(frozen=True)
class Namespace:
    """A namespace, and its block device.

    :param size: bytes of a logical block
    """

    number: int
    path: str
    size: int
    is_read_only: bool


@dataclasses.dataclass(frozen=True)
class Sanitized:
    """The Sanitize Status log page.

    :param percent: how much is done, while it is running
    :param action: the action of the most recent sanitize operation
    """

    percent: int
    status: int
    action: int

    @property
    def is_running(self) -> bool:
        return self.status == 2

    @property
    def has_failed(self) -> bool:
        return self.status == 3

    @property
    def has_succeeded(self) -> bool:
        return self.status in (1, 4)


class Controller:
    """The controller of a PCI function.

    :param root: the directory above ``sys`` and ``dev``
    :raises errors.AccelError: if it is not alive in time
    """

    def __init__(self, address: model.PciAddress,
                 root: pathlib.Path = pathlib.Path('/')) -> None:
        self._root = root
        self._function = root / f'sys/bus/pci/devices/{address}'
        self._folder = _wait(self._alive, lambda: errors.AccelError(
            f'device {address}', 'has no NVMe controller that is live',
            'the cleaner needs "driver": "nvme"'))
        self.name = self._folder.name

    def _alive(self) -> pathlib.Path | None:
        return next((folder for folder in self._function.glob('nvme/nvme*')
                     if _text(folder / 'state') == 'live'), None)

    @functools.cached_property
    def identity(self) -> Identity:
        data = self._identify(_CONTROLLER)
        oacs = _number(data, 256, 2)
        return Identity(
            _number(data, 78, 2), _number(data, 328, 4),
            bool(oacs & _FORMAT), bool(data[524] >> 2 & 1),
            _number(data, 296, 16), bool(oacs & _MANAGEMENT),
            bool(oacs & _VIRTUALIZATION), bool(data[76] & _MULTI_CONTROLLER))

    @property
    def is_virtual(self) -> bool:
        """Whether it belongs to a virtual function."""
        return os.path.lexists(self._function / 'physfn')

    def others(self) -> list[int]:
        """Return the numbers of the other controllers of the subsystem.

        An erase would reach their namespaces as well. Secondary controllers
        that are offline do not count.

        :raises errors.AccelError: if the controller does not tell
        """
        if not self.identity.is_multiple:
            return []
        try:
            data = self._identify(_CONTROLLERS)
        except errors.AccelError as error:
            raise errors.AccelError(
                f'controller {self.name}', 'can share its disk with others, '
                f'and does not list them: {error}') from None
        found = {_number(data, 2 * index, 2)
                 for index in range(1, _number(data, 0, 2) + 1)}
        return sorted(found - {self.identity.number} - self._offline())

    def _offline(self) -> set[int]:
        """Return the numbers of secondary controllers that are offline."""
        if not self.identity.has_virtualization:
            return set()
        data = self._identify(_SECONDARY)
        entries = [data[32 * index:][:32] for index in range(1, data[0] + 1)]
        return {_number(entry, 0, 2) for entry in entries if not entry[4] & 1}

    def namespaces(self) -> list[Namespace]:
        """Return all namespaces of the subsystem.

        :raises errors.AccelError: if there is none; if one has no block
            device here, or cannot be written
        """
        data = self._identify(_ALLOCATED if self.identity.has_management
                              else _ACTIVE)
        wanted = {_number(data, at, 4) for at in range(0, len(data), 4)} - {0}

        if not wanted:
            raise errors.AccelError(f'controller {self.name}',
                                    'has no namespace', 'make one by hand')

        def there() -> dict[int, Namespace] | None:
            found = {one.number: one for one in self._block_devices()}
            return found if found.keys() >= wanted else None

        found = _wait(there, lambda: errors.AccelError(
            f'controller {self.name}', 'has namespaces that are no disk here: '
            + ', '.join(map(str, sorted(wanted - {
                one.number for one in self._block_devices()}))),
            'attach or delete them by hand'))
        for one in found.values():
            if one.is_read_only:
                raise errors.AccelError(one.path, 'is write-protected',
                                        'end that by hand')
        return [found[number] for number in sorted(wanted)]

    def _block_devices(self) -> collections.abc.Iterator[Namespace]:
        for path in self._folder.glob(f'{self.name}*n*'):
            # With the kernel's multipath, this is a path (nvme0c0n1) to the
            # block device (nvme0n1).
            name = re.sub(r'c\d+(?=n\d+$)', '', path.name)
            block = self._root / f'sys/class/block/{name}'
            device = self._root / f'dev/{name}'
            size = _text(block / 'queue/logical_block_size')
            if size and device.exists():
                yield Namespace(int(_text(path / 'nsid')), str(device),
                                int(size), _text(block / 'ro') == '1')

    def sanitize(self, action: int) -> None:
        """Start a sanitize operation (SANACT).

        :raises errors.AccelError: if the controller refuses
        """
        self._nvme('sanitize', f'--sanact={action}',
                   # 0 would be 16 passes.
                   *['--owpass=1'] * (action == 3))

    def sanitized(self) -> Sanitized:
        """Return the state of the most recent sanitize operation."""
        data = self._nvme('sanitize-log', '--raw-binary')
        return Sanitized(_number(data, 0, 2) * 100 >> 16,
                         _number(data, 2, 2) & 7, _number(data, 4, 4) & 7)

    def format(self, namespace: int, erase: int) -> None:
        """Format a namespace as it is formatted now.

        :param erase: SES
        :raises errors.AccelError: if the controller refuses
        """
        data = self._identify(_NAMESPACE, namespace)
        flbas, dps = data[26], data[29]
        # Without --lbaf, nvme-cli may choose LBA format 0.
        self._nvme('format', f'--namespace-id={namespace}', f'--ses={erase}',
                   f'--lbaf={flbas & 0xf | flbas >> 1 & 0x30}',
                   f'--ms={flbas >> 4 & 1}', f'--pi={dps & 7}',
                   f'--pil={dps >> 3 & 1}', f'--timeout={_FORMAT_TIMEOUT}',
                   '--force')

    def _identify(self, cns: int, namespace: int = 0) -> bytes:
        return self._nvme(
            'admin-passthru', '--opcode=6', f'--cdw10={cns}',
            f'--namespace-id={namespace}', '--data-len=4096', '--read',
            '--raw-binary')

    def _nvme(self, command: str, *options: str) -> bytes:
        """Run nvme-cli on the controller, and return its output.

        :raises errors.AccelError: if it fails
        """
        try:
            done = subprocess.run(
                ['nvme', command, str(self._root / f'dev/{self.name}'),
                 *options], stdin=subprocess.DEVNULL, capture_output=True)
        except FileNotFoundError:
            raise errors.AccelError('nvme', 'is not there',
                                    'install nvme-cli') from None
        if done.returncode:
            said = (done.stderr or done.stdout).decode('utf-8', 'replace')
            raise errors.AccelError(f'nvme {command} {self.name}', ' '.join(
                said.split()) or f'it ended with {done.returncode}')
        return done.stdout


def _wait(ask: collections.abc.Callable[[], _Answer | None],
          failure: collections.abc.Callable[[], errors.AccelError]) -> _Answer:
    """Return the first answer that is not None.

    :param failure: returns what is raised at the time limit
    """
    end = time.monotonic() + PATIENCE
    while (answer := ask()) is None:
        if time.monotonic() > end:
            raise failure()
        time.sleep(_PAUSE)
    return answer


def _text(path: pathlib.Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ''


def _number(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at:at + size], 'little')
