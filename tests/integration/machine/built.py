# SPDX-License-Identifier: Apache-2.0
"""All that machines are made of."""

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

#: Of this machine's distribution, for all of it.
PACKAGES = sorted({*emulator.PACKAGES, *guest.PACKAGES, *kernel.PACKAGES,
                   *modules.PACKAGES, *root.PACKAGES})

#: Which file is what, for those who come later.
_FILE = kept.CACHE / 'parts.json'


@dataclasses.dataclass(frozen=True)
class Parts:
    """Files; none of them is written to any more."""
    qemu: pathlib.Path
    linux: pathlib.Path
    initramfs: pathlib.Path
    disk: pathlib.Path
    #: The private key that its root is reached with.
    key: pathlib.Path
    guest_linux: pathlib.Path
    guest_initramfs: pathlib.Path
    #: Of a guest that runs one command.
    guest_with_lspci: pathlib.Path


def install(steps: Steps) -> None:
    """Make them all, or take what is kept; for `load` too.

    :raises Failure: the first step's that fails
    """
    with steps.step('packages for the machine in the machine'):
        packages.apt(*PACKAGES)
        # Those that are there can be older than the kernel that is fetched.
        packages.apt(f'linux-headers-{kernel.release()}')
    parts = _build(steps, _wheel())
    _FILE.write_text(json.dumps(
        {name: str(path) for name, path in
         dataclasses.asdict(parts).items()}, indent=1))
    return parts


def load() -> Parts:
    """Those that were installed, perhaps by another process.

    :raises Failure: if they were not
    """
    try:
        paths = json.loads(_FILE.read_text())
    except FileNotFoundError:
        raise Failure(f'there is no {_FILE}: the machine was not built; '
                      'parts 2 to 4 do that, and `python -m '
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
    """nova-accel, made as the installation guide says."""
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
