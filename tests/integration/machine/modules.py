# SPDX-License-Identifier: Apache-2.0
"""The machine's kernel modules that Debian's kernel lacks."""

import pathlib
import re
import shutil

from tests.integration.machine import kept
from tests.integration.steps import Failure
from tests.integration.steps import Steps
from tests.integration.steps import run

PACKAGES = ('build-essential', 'kmod', 'linux-source-6.1', 'xz-utils')

_OURS = pathlib.Path(__file__).parent / 'drivers'
#: The kernel's source, for its mdev samples and FPGA drivers.
_SOURCE = pathlib.Path('/usr/src/linux-source-6.1.tar.xz')
_DIRECTORIES = ('drivers/fpga', 'samples/vfio-mdev')


def build(steps: Steps, release: str) -> list[pathlib.Path]:
    """Build the modules unless they are kept, and return their files.

    :param release: the release of the kernel that loads them, for example
        ``6.1.0-56-amd64``
    :raises Failure: if the kernel's headers or source are not installed, or
        with the compiler's output
    """
    if not release.startswith('6.1.'):
        raise Failure(f'modules for Linux {release}: {_OURS / "nvidia.c"} is '
                      'for 6.1, the kernel of Debian 12')
    names = re.findall(r'([\w-]+)\.o\b', ' '.join(
        line for line in (_OURS / 'Kbuild').read_text().splitlines()
        if line.startswith('obj-m')))

    def make(path):
        with steps.step(f'kernel modules for {release}'):
            _compile(path, release)
            for file in path.iterdir():
                if file.suffix != '.ko':
                    _remove(file)

    path = kept.kept('modules', [release, *sorted(_OURS.iterdir())], make)
    return [path / f'{name}.ko' for name in names]


def _compile(path, release):
    headers = pathlib.Path('/lib/modules', release, 'build')
    for needed, package in ((headers, f'linux-headers-{release}'),
                            (_SOURCE, 'linux-source-6.1')):
        if not needed.exists():
            raise Failure(f'{needed} is missing: apt-get install {package}')
    root = _SOURCE.name.removesuffix('.tar.xz')
    path.mkdir()
    run('tar', '-xf', _SOURCE, '-C', path,
        *(f'{root}/{directory}' for directory in _DIRECTORIES))
    # Put all files into one directory, so that one Kbuild knows all symbols.
    for directory in _DIRECTORIES:
        for file in (path / root / directory).glob('*.[ch]'):
            file.rename(path / file.name)
    for file in _OURS.iterdir():
        shutil.copy(file, path)
    run('nice', '-n', '10', 'make', '-s', '-C', headers, f'M={path}',
        'modules')


def _remove(path):
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
