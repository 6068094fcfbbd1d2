# SPDX-License-Identifier: Apache-2.0
"""``nova-accel-nvme``: erase an NVMe disk, and verify that.

Before the erase, some blocks are marked (:mod:`samples`). The verification
reads them, and asks the controller how the erase ended.

Source: NVM Express Base Specification, Sanitize Operations, Format NVM.
"""

import collections.abc
import contextlib
import pathlib
import sys
import time

from nova_accel.cleaners import controller as controllers
from nova_accel.cleaners import program
from nova_accel.cleaners import samples
from nova_accel.core import errors
from nova_accel.core import model

#: Sanitize operations in the order of preference: bit of SANICAP, and SANACT.
_SANITIZE = {'block-erase': (1, 2), 'crypto-erase': (0, 4),
             'overwrite': (2, 3)}
#: Format, where none of them is supported: SES.
_FORMAT = {'format': 1, 'format-crypto': 2}

#: Seconds between two looks at a sanitize operation.
_PAUSE = 2


def main(arguments: collections.abc.Sequence[str] | None = None,
         root: pathlib.Path = pathlib.Path('/')) -> int:
    """Run the program; return its exit code.

    :param arguments: those of the process by default
    :param root: the directory above ``sys`` and ``dev``
    """
    parser = program.parser('nova-accel-nvme', 'Erase all data of an NVMe '
                            'disk, or verify that.')
    parser.add_argument(
        '--erase', choices=[*_SANITIZE, *_FORMAT],
        help='how; the first one that the disk supports by default')
    options = parser.parse_args(arguments)
    return program.run(
        options.step,
        clean=lambda: _clean(root, options.address, options.erase),
        verify=lambda: _verify(root, options.address, options.erase))


def _clean(root: pathlib.Path, address: model.PciAddress,
           erase: str | None) -> None:
    controller, how = _open(root, address, erase)
    if controller.identity.sanitize and _finished(controller).has_failed:
        raise errors.AccelError(
            f'controller {controller.name}', 'its last sanitize operation '
            'failed, so that it has no access to its blocks',
            'repeat it by hand (nvme sanitize), or replace the disk')
    with _disks(controller, how, True) as disks:
        for disk in disks.values():
            disk.mark()
        if how in _SANITIZE:
            controller.sanitize(_SANITIZE[how][1])
            _check_success(controller, how)
        else:
            for namespace in disks:
                controller.format(namespace, _FORMAT[how])
    print(f'{controller.name}: {how} is done')


def _verify(root: pathlib.Path, address: model.PciAddress,
            erase: str | None) -> None:
    controller, how = _open(root, address, erase)
    if how in _SANITIZE:
        _check_success(controller, how)
    with _disks(controller, how, False) as disks:
        for disk in disks.values():
            print(disk.check())


def _open(root: pathlib.Path, address: model.PciAddress, erase: str | None,
          ) -> tuple[controllers.Controller, str]:
    """Return a controller that has its subsystem alone, and how to erase."""
    controller = controllers.Controller(address, root)
    thing = f'controller {controller.name} ({address})'
    if controller.is_virtual:
        raise errors.AccelError(thing, 'belongs to a virtual function',
                                'only a whole disk can be erased')
    if others := controller.others():
        raise errors.AccelError(
            thing, 'shares its disk with other controllers, which an erase '
            'would reach: ' + ', '.join(map(str, others)))
    able = _able(controller.identity)
    if not able or erase and erase not in able:
        raise errors.AccelError(
            thing, f'supports no {erase or "sanitize and no format"}',
            f'it supports {", ".join(able)}' if able else '')
    return controller, erase or able[0]


def _able(identity: controllers.Identity) -> list[str]:
    """Return the supported erases in the order of preference."""
    return [*(name for name, (bit, _action) in _SANITIZE.items()
              if identity.sanitize >> bit & 1),
            *['format'] * identity.can_format,
            *['format-crypto'] * (identity.can_format
                                  and identity.can_format_crypto)]


@contextlib.contextmanager
def _disks(controller: controllers.Controller, how: str, writable: bool,
           ) -> collections.abc.Iterator[dict[int, samples.Disk]]:
    """Open all disks of a controller, by the number of the namespace."""
    if how in _FORMAT and controller.identity.unallocated:
        raise errors.AccelError(
            f'controller {controller.name}', 'has '
            f'{controller.identity.unallocated} bytes in no namespace, which '
            'a format does not erase', 'make a namespace of them by hand')
    with contextlib.ExitStack() as stack:
        yield {one.number: stack.enter_context(samples.opened(
            one.path, one.size, writable)) for one in controller.namespaces()}


def _check_success(controller: controllers.Controller, how: str) -> None:
    """Wait for the end of a sanitize operation, and check how it ended."""
    log = _finished(controller)
    if not log.has_succeeded or log.action != _SANITIZE[how][1]:
        raise errors.AccelError(
            f'controller {controller.name}', f'does not report that {how} '
            f'succeeded: status {log.status}, action {log.action}')


def _finished(controller: controllers.Controller) -> controllers.Sanitized:
    """Return the sanitize log when no sanitize operation is running."""
    printed = -10
    while (log := controller.sanitized()).is_running:
        if log.percent >= printed + 10:
            print(f'{controller.name}: {log.percent} %', flush=True)
            printed = log.percent
        time.sleep(_PAUSE)
    return log


if __name__ == '__main__':
    sys.exit(main())
