# SPDX-License-Identifier: Apache-2.0
"""Installation of nova-accel as the installation guide says.

The commands and the options come from the pages. This module installs
nova-accel with pip, makes a wheel, and writes the options of nova.conf.
stage1/test_plain.py unpacks the wheel beside another Nova, and lists the
devices of the host and of the cloud.
"""

from collections.abc import Iterator
import contextlib
import functools
import hashlib
import pathlib
import re
import shutil

from docutils import core
from docutils import nodes

from tests.integration import place
from tests.integration import steps
from tests.integration.cloud import cloud
from tests.integration.cloud import configuration

#: A copy of the clone, with the wheel. It is built before the cloud starts:
#: in the cloud, pip has no network to download build requirements.
COPY = place.CACHE / 'install'

#: The file with the options. Its name sorts first, so that the files that
#: tests add override it.
NAME = '00-install-guide'
_PAGES = place.ROOT / 'doc/source'
#: Commands of the page ``install``.
PIP = 'pip install .'
WHEEL = 'pip wheel --no-deps .'
_ID = re.compile('[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}')
#: The files from which nova-accel is built.
_PARTS = ('LICENSE', 'README.rst', 'etc', 'nova_accel', 'pyproject.toml',
          'setup.cfg', 'setup.py')


@functools.cache
def blocks(page: str) -> tuple[str, ...]:
    """Return the literal blocks of a page of the documentation."""
    document = core.publish_doctree(
        (_PAGES / f'{page}.rst').read_text(), settings_overrides={
            'report_level': 5, 'file_insertion_enabled': False})
    return tuple(block.astext()
                 for block in document.findall(nodes.literal_block))


def commands(page: str) -> list[str]:
    """Return the command lines of a page of the guide, without prompts."""
    return [line.removeprefix('# ') for block in blocks(f'install/{page}')
            if not _is_conf(block) for line in block.splitlines()]


def matches(expected: str, output: str) -> bool:
    """Whether a command's output matches the output on a page.

    ``...`` matches any text, and alone in a line any lines. A UUID matches any
    text, and so does ``/sys``. Columns can have other widths.
    """
    lines = [re.escape(_ID.sub('...', _narrow(line)).replace('/sys', '...')
                       ).replace(re.escape('...'), '.*')
             for line in expected.splitlines()]
    pattern = '\n'.join('(?:.*\n)*?.*' if line == '.*' else line
                        for line in lines)
    return re.match(pattern, '\n'.join(
        map(_narrow, output.splitlines()))) is not None


def _narrow(line):
    return re.sub('-{2,}', '--', re.sub(r'(?<=\S) {2,}', ' ', line))


def conf() -> str:
    """Return the text that the guide adds to nova.conf."""
    return '\n'.join(filter(_is_conf, blocks('install/configure'))) + '\n'


def _is_conf(block):
    return block.startswith('[')


def install() -> None:
    """Install with the pip of Nova's environment, and build the wheel.

    The wheel is unpacked later. Do nothing if this clone is installed.
    """
    stamp = place.VENV / 'nova-accel.installed'
    source = _source()
    if not (stamp.exists() and stamp.read_text() == source):
        _run(PIP, place.ROOT)
        _copy()
        _run(WHEEL, COPY)
        stamp.write_text(source)


def _run(line, directory):
    steps.run(*line.split(), cwd=directory, log=place.LOG / 'pip.log',
              env=cloud.environment())


def _source():
    digest = hashlib.sha256()
    for path in _paths():
        for file in sorted(path.rglob('*.py')) if path.is_dir() else [path]:
            digest.update(f'{file}\n'.encode() + file.read_bytes())
    return digest.hexdigest()


def _copy():
    shutil.rmtree(COPY, ignore_errors=True)
    place.make(COPY)
    for path in _paths():
        copy = shutil.copytree if path.is_dir() else shutil.copy
        copy(path, COPY / path.name)


def _paths() -> list[pathlib.Path]:
    return [place.ROOT / name for name in _PARTS]


def configure() -> None:
    """Write the options of nova.conf."""
    configuration.add('nova', NAME, conf())


@contextlib.contextmanager
def unconfigured() -> Iterator[None]:
    """Remove the options from nova.conf during the context."""
    configuration.add('nova', NAME, '')
    try:
        yield
    finally:
        configure()
