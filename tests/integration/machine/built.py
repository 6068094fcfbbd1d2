# SPDX-License-Identifier: Apache-2.0
"""The files from which machines run: build or find them."""

import dataclasses
import json
import pathlib
import shutil
import sys

from tests.integration import packages
from tests.integration import place
from tests.integration.machine import emulator
from tests.integration.machine import guest
from tests.integration.machine import kept
from tests.integration.machine import kernel
from tests.integration.machine import modules
from tests.integration.machine import root
from tests.integration.steps import Failure
from tests.integration.steps import Steps
from tests.integration.steps import run

#: All Debian packages that the build needs.
PACKAGES = sorted({*emulator.PACKAGES, *guest.PACKAGES, *kernel.PACKAGES,
                   *modules.PACKAGES, *root.PACKAGES})

#: The paths of the files, for other processes.
_FILE = kept.CACHE / 'parts.json'


@dataclasses.dataclass(frozen=True)
class Parts:
    """Paths of the files, which are read-only from now on."""
    qemu: pathlib.Path
    linux: pathlib.Path
    initramfs: pathlib.Path
    disk: pathlib.Path
    #: The private key for ssh to root in the machine.
    key: pathlib.Path
    guest_linux: pathlib.Path
    guest_initramfs: pathlib.Path
    #: The initramfs of a guest that runs one command.
    guest_with_lspci: pathlib.Path


def install(steps: Steps) -> None:
    """Build the files that are not kept, and write their paths for `load`.

    :raises Failure: from the first step that fails
    """
    with steps.step('packages for the machine in the machine'):
        packages.apt(*PACKAGES)
        # Installed headers may be older than the downloaded kernel.
        packages.apt(f'linux-headers-{kernel.release()}')
    parts = _build(steps, _wheel())
    _FILE.write_text(json.dumps(
        {name: str(path) for name, path in
         dataclasses.asdict(parts).items()}, indent=1))
    return parts


def load() -> Parts:
    """Return the files of the last `install`, maybe of another process.

    :raises Failure: if there are none
    """
    try:
        paths = json.loads(_FILE.read_text())
    except FileNotFoundError:
        raise Failure(f'there is no {_FILE}: the machine was not built. '
                      'Parts 2 to 4 build it, and `python -m '
                      'tests.integration.machine install`') from None
    return Parts(**{name: pathlib.Path(path)
                    for name, path in paths.items()})


def _build(steps, wheel):
    linux = kernel.unpacked(steps)
    added = modules.build(steps, kernel.release())
    key = _key()
    return Parts(
        qemu=emulator.build(steps),
        linux=kernel.image(linux),
        initramfs=root.initramfs(steps, linux),
        disk=root.disk(steps, linux, added, wheel, key),
        key=key,
        guest_linux=guest.linux(steps),
        guest_initramfs=guest.initramfs(steps),
        guest_with_lspci=guest.with_lspci(steps))


def _wheel():
    """Build nova-accel's wheel as the installation guide says."""
    directory = kept.CACHE / 'wheel'
    shutil.rmtree(directory, ignore_errors=True)
    run(sys.executable, '-m', 'pip', 'wheel', '-q', '--no-deps', '-w',
        directory, place.ROOT)
    [wheel] = directory.glob('*.whl')
    return wheel


def _key():
    def make(path):
        path.mkdir()
        run('ssh-keygen', '-q', '-t', 'ed25519', '-N', '', '-C', 'machine',
            '-f', path / 'key')

    return kept.kept('key', [], make) / 'key'
