# SPDX-License-Identifier: Apache-2.0
"""Programs of Debian packages, fetched by any user and not installed."""

import contextlib
import pathlib
import shutil
import subprocess
import tempfile

_FETCHED = pathlib.Path(__file__).parents[1] / '.tox' / 'debian'


def program(package: str) -> str | None:
    """Return the path of the program with the same name as its package.

    :returns: that of the machine if it has one; None where apt-get is missing,
        or cannot fetch it
    """
    fetched = _FETCHED / package
    path = shutil.which(package) or shutil.which(
        package, path=fetched / 'usr' / 'bin')
    if not path and shutil.which('apt-get'):
        with contextlib.suppress(subprocess.CalledProcessError):
            _fetch(package, fetched)
        path = shutil.which(package, path=fetched / 'usr' / 'bin')
    return path


def _fetch(package: str, folder: pathlib.Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        try:
            _apt(work, 'download', package)
        except subprocess.CalledProcessError:
            # The lists are missing, or older than the mirror.
            lists = pathlib.Path(work, 'lists', 'partial')
            lists.mkdir(parents=True)
            own = '-o', f'Dir::State::lists={lists.parent}'
            _apt(work, *own, 'update')
            _apt(work, *own, 'download', package)
        [file] = pathlib.Path(work).glob('*.deb')
        unpacked = pathlib.Path(work, 'unpacked')
        subprocess.run(['dpkg-deb', '-x', file, unpacked], check=True)
        # Another process may have been faster.
        with contextlib.suppress(OSError):
            unpacked.rename(folder)


def _apt(work: str, *words: str) -> None:
    # apt-get gives up root for a user that may not write to this folder.
    subprocess.run(['apt-get', '-q', '-o', 'APT::Sandbox::User=root', *words],
                   cwd=work, check=True, stdout=subprocess.DEVNULL)
