# SPDX-License-Identifier: Apache-2.0
"""The image of servers: Debian's kernel, and a script that lists devices."""

import pathlib
import shutil
import subprocess

from tests.integration import place
from tests.integration import steps

KERNEL = place.CACHE / 'guest' / 'vmlinuz'
RAMDISK = place.CACHE / 'guest' / 'ramdisk'
_INIT = pathlib.Path(__file__).parent / 'init'
_PACKAGE = 'linux-image-cloud-amd64'


def build() -> None:
    place.make(KERNEL.parent)
    if not KERNEL.exists():
        _kernel()
    _ramdisk()


def _kernel():
    """Extract the kernel from its package, without installing that."""
    depends = steps.run('apt-cache', 'depends', '--important', _PACKAGE)
    name = depends.partition('Depends: ')[2].split()
    if not name:
        raise steps.Failure(f'apt knows no {_PACKAGE}: is this Debian 12, and '
                            'was apt-get update done?')
    steps.run('apt-get', 'download', name[0], cwd=KERNEL.parent)
    [package] = KERNEL.parent.glob(f'{name[0]}_*.deb')
    steps.run('dpkg-deb', '-x', package, KERNEL.parent / 'package')
    [kernel] = KERNEL.parent.glob('package/boot/vmlinuz-*')
    shutil.copy(kernel, KERNEL)


def _ramdisk():
    root = KERNEL.parent / 'root'
    for name in ('bin', 'proc', 'sys', 'dev'):
        place.make(root / name)
    shutil.copy('/bin/busybox', root / 'bin' / 'busybox')
    shell = root / 'bin' / 'sh'
    if not shell.is_symlink():
        shell.symlink_to('busybox')
    shutil.copy(_INIT, root / 'init')
    (root / 'init').chmod(0o755)
    names = subprocess.run(['find', '.'], cwd=root, capture_output=True,
                           check=True).stdout
    RAMDISK.write_bytes(subprocess.run(
        ['cpio', '-o', '-H', 'newc', '--quiet'], cwd=root, input=names,
        capture_output=True, check=True).stdout)
