# SPDX-License-Identifier: Apache-2.0
"""A guest image with SSH: busybox and Debian's dropbear."""

import pathlib
import re
import shutil
import subprocess

from tests.integration import place
from tests.integration import steps
from tests.integration.cloud import guest

RAMDISK = place.CACHE / 'tempest' / 'ramdisk'

#: Modules of the kernel's package, in the order of their dependencies.
_MODULES = ('virtio_ring', 'virtio', 'virtio_pci_legacy_dev',
            'virtio_pci_modern_dev', 'virtio_pci', 'failover', 'net_failover',
            'virtio_net', 'scsi_common', 'scsi_mod', 'virtio_scsi', 'cdrom',
            'sr_mod', 'isofs')
#: Image properties that put the config drive on a bus with one of the modules.
PROPERTIES = {'hw_cdrom_bus': 'scsi', 'hw_scsi_model': 'virtio-scsi'}
_PACKAGES = ('dropbear-bin', 'libtomcrypt1', 'libtommath1', 'libgmp10',
             'libcrypt1', 'zlib1g', 'libc6')
_LOADER = 'ld-linux-x86-64.so.2'
_INIT = pathlib.Path(__file__).parent / 'init'
_USER = 'root:x:0:0:root:/root:/bin/sh\n'
#: Prefer /sbin/reboot to busybox's, which would ask an init for the reboot.
_SUDO = """\
#!/bin/sh
command=$1
shift
[ -x "/sbin/$command" ] && exec "/sbin/$command" "$@"
exec "$command" "$@"
"""
#: Stop SSH some seconds before the reboot, as other systems do: Cyborg's test
#: polls once a second until SSH fails.
_REBOOT = """\
#!/bin/sh
kill -9 "$(cat /run/dropbear.pid)"
setsid sh -c 'sleep 8; exec /bin/busybox reboot -f' \\
    < /dev/null > /dev/null 2>&1 &
"""


def build() -> None:
    """Build the ramdisk; the kernel is that of the cloud's own image.

    :raises Failure: if a package or a file of it is missing
    """
    tree = RAMDISK.parent / 'root'
    shutil.rmtree(tree, ignore_errors=True)
    for name in ('bin', 'config', 'dev', 'etc', 'lib', 'lib64', 'proc',
                 'root', 'run', 'sbin', 'sys', 'var/log'):
        place.make(tree / name)
    shutil.copy('/bin/busybox', tree / 'bin')
    (tree / 'bin' / 'sh').symlink_to('busybox')
    _programs(tree)
    _modules(tree)
    shutil.copy(_INIT, tree / 'init')
    (tree / 'etc' / 'passwd').write_text(_USER)
    (tree / 'etc' / 'shells').write_text('/bin/sh\n')
    # These come before busybox's own on the path.
    for name, text in (('sbin/reboot', _REBOOT), ('sbin/sudo', _SUDO)):
        (tree / name).write_text(text)
    for name in ('init', 'sbin/reboot', 'sbin/sudo'):
        (tree / name).chmod(0o755)
    _pack(tree)


def _programs(tree):
    """Copy dropbear and the libraries that it is linked to."""
    unpacked = RAMDISK.parent / 'packages'
    place.make(unpacked)
    for name in _PACKAGES:
        if not list(unpacked.glob(f'{name}_*.deb')):
            steps.run('apt-get', 'download', name, cwd=unpacked)
        [package] = unpacked.glob(f'{name}_*.deb')
        steps.run('dpkg-deb', '-x', package, unpacked / 'root')
    shutil.copy(_found(unpacked / 'root', 'dropbear'), tree / 'bin')
    for library in _libraries(unpacked / 'root'):
        shutil.copy(_found(unpacked / 'root', library),
                    tree / ('lib64' if library == _LOADER else 'lib'))


def _libraries(root):
    said = steps.run('readelf', '-d', *(
        path for path in root.rglob('*')
        if path.is_file() and (path.name == 'dropbear' or
                               path.name.startswith(('libtom', 'libgmp')))))
    return {_LOADER, 'libc.so.6',
            *re.findall(r'\(NEEDED\).*\[(.*)\]', said)}


def _modules(tree):
    for name in _MODULES:
        shutil.copy(_found(guest.KERNEL.parent / 'package', f'{name}.ko'),
                    tree / 'lib')
    (tree / 'modules').write_text('\n'.join(_MODULES) + '\n')


def _found(root, name):
    for path in sorted(root.rglob(name)):
        if path.is_file():
            return path
    raise steps.Failure(f'no {name} below {root}: the package may have '
                        'another layout in this version of Debian')


def _pack(tree):
    names = subprocess.run(['find', '.'], cwd=tree, capture_output=True,
                           check=True).stdout
    RAMDISK.write_bytes(subprocess.run(
        ['cpio', '-o', '-H', 'newc', '--quiet'], cwd=tree, input=names,
        capture_output=True, check=True).stdout)
