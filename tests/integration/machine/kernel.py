# SPDX-License-Identifier: Apache-2.0
"""The machine's kernel, from Debian's package."""

from collections.abc import Iterable
import functools
import pathlib
import re

from tests.integration.machine import kept
from tests.integration.steps import Failure
from tests.integration.steps import Steps
from tests.integration.steps import run

PACKAGES = ('cpio', 'kmod')


@functools.cache
def release() -> str:
    """Return the release of Debian's newest kernel for this system."""
    said = run('apt-cache', 'depends', 'linux-image-amd64')
    found = re.search(r'Depends: linux-image-(\S+)', said)
    if not found:
        raise Failure('apt knows no linux-image-amd64: this is not Debian, '
                      'or `apt-get update` was not run')
    return found.group(1)


def unpacked(steps: Steps) -> pathlib.Path:
    """Return the directory of the unpacked kernel package."""
    package = f'linux-image-{release()}'
    version = run('apt-cache', 'show', '--no-all-versions', package)

    def make(path):
        with steps.step(f'{package} from the archive'):
            path.mkdir()
            run('apt-get', '-qq', '-o', 'APT::Sandbox::User=root', 'download',
                package, cwd=path)
            [archive] = path.glob('*.deb')
            run('dpkg-deb', '-x', archive, path)
            archive.unlink()
            run('depmod', '-b', path, release())

    return kept.kept('kernel', [version], make)


def image(tree: pathlib.Path) -> pathlib.Path:
    return tree / 'boot' / f'vmlinuz-{release()}'


def modules(tree: pathlib.Path, names: Iterable[str]) -> list[pathlib.Path]:
    """Return the files of modules and their dependencies in loading order.

    :raises Failure: if the kernel lacks a module
    """
    files = []
    for name in names:
        said = run('modprobe', '-d', tree, '-S', release(), '--show-depends',
                   name)
        files += [pathlib.Path(line.split()[1]) for line in said.splitlines()
                  if line.startswith('insmod ')]
    return list(dict.fromkeys(files))


def archive(tree: pathlib.Path, into: pathlib.Path) -> None:
    """Write a directory as an initramfs."""
    run('sh', '-c', 'find . | cpio -o -H newc --quiet | gzip -1 > "$1"',
        'sh', into, cwd=tree)
