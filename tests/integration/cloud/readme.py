# SPDX-License-Identifier: Apache-2.0
"""nova-accel, installed as the README says: by what is written there.

What it has indented in "Install it into a real Nova" is taken from it. Here
nova-accel is installed by pip, a wheel is made, and nova.conf gets what it is
to have. What comes after that, stage1/test_plain.py runs: the wheel is
unpacked beside another Nova, and one looks at the machine and at Placement.
So it cannot say anything else than what is tried.
"""

import functools
import hashlib
import itertools
import pathlib
import shutil

from docutils import core
from docutils import nodes

from tests.integration import place
from tests.integration import steps
from tests.integration.cloud import cloud
from tests.integration.cloud import configuration

#: A copy of the clone, where the wheel is left: in the cloud, pip has no
#: network to get from what it makes one with.
COPY = place.CACHE / 'readme'

#: What the file is called that nova.conf's is in.
NAME = 'README'
_SECTION = 'Install it into a real Nova'
#: What nova-accel is made of.
_PARTS = ('LICENSE', 'README.rst', 'etc', 'nova_accel', 'pyproject.toml',
          'setup.cfg', 'setup.py')


@functools.cache
def literals() -> tuple[tuple[str, ...], ...]:
    """What is indented there, by the section's steps.

    :raises Failure: if there is no such section
    """
    text = (place.ROOT / 'README.rst').read_text()
    document = core.publish_doctree(text, settings_overrides={
        'report_level': 5, 'file_insertion_enabled': False})
    for section in document.findall(nodes.section):
        if section.next_node(nodes.title).astext() == _SECTION:
            [numbered] = section.findall(nodes.enumerated_list)
            return tuple(
                tuple(block.astext()
                      for block in item.findall(nodes.literal_block))
                for item in numbered)
    raise steps.Failure(f'README.rst has no section "{_SECTION}"')


def commands(step: int) -> list[str]:
    """The command lines of a step, which is counted from 1."""
    return [line for block in literals()[step - 1] if not _is_conf(block)
            for line in block.splitlines()]


def conf() -> str:
    """All that is to be put into nova.conf."""
    return '\n'.join(block for block in itertools.chain(*literals())
                     if _is_conf(block)) + '\n'


def _is_conf(block):
    return ' = ' in block.splitlines()[-1]


def install() -> None:
    """Its first step, with the pip of the environment that Nova is in.

    And the wheel of its other way, which is unpacked later. Not again, if
    what is installed there is this clone as it is.
    """
    stamp = place.VENV / 'nova-accel.installed'
    source = _source()
    if not (stamp.exists() and stamp.read_text() == source):
        install, wheel, _unpack = commands(1)
        _run(install, place.ROOT)
        _copy()
        _run(wheel, COPY)
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
    """Its second, third and fourth: nova.conf."""
    configuration.add('nova', NAME, conf())
