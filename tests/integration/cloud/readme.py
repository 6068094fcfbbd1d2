# SPDX-License-Identifier: Apache-2.0
"""nova-accel, installed as the README says: by what is written there.

What it has indented in "Install it into a real Nova" is taken from it, and
run or put into nova.conf. So it cannot say anything else than what is tried.
"""

import functools
import hashlib
import itertools

from docutils import core
from docutils import nodes

from tests.integration import place
from tests.integration import steps
from tests.integration.cloud import cloud
from tests.integration.cloud import configuration

_SECTION = 'Install it into a real Nova'


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

    Not again, if what is installed there is this clone as it is.
    """
    stamp = place.VENV / 'nova-accel.installed'
    source = _source()
    if not (stamp.exists() and stamp.read_text() == source):
        line, *_others = commands(1)
        steps.run(*line.split(), cwd=place.ROOT, log=place.LOG / 'pip.log',
                  env=cloud.environment())
        stamp.write_text(source)


def _source():
    digest = hashlib.sha256()
    for name in ('README.rst', 'pyproject.toml', 'setup.cfg', 'nova_accel'):
        path = place.ROOT / name
        for file in sorted(path.rglob('*.py')) if path.is_dir() else [path]:
            digest.update(f'{file}\n'.encode() + file.read_bytes())
    return digest.hexdigest()


def configure() -> None:
    """Its second, third and fourth: nova.conf."""
    configuration.add('nova', 'README', conf())
