# SPDX-License-Identifier: Apache-2.0
"""Configuration files in /etc: the packages' files and the test's own."""

import pathlib
import shutil

import jinja2

from tests.integration import namespaces
from tests.integration import place

KEYSTONE = 'http://127.0.0.1:5000/v3'
PASSWORD = 'secret'
#: One end of a veth pair, which is the physical network.
INTERFACE = 'physical0'
DATABASES = f'mysql+pymysql://cloud:{PASSWORD}@127.0.0.1'

_CONF = pathlib.Path(__file__).parent / 'conf'
_VALUES = {
    'bin': place.BIN, 'databases': DATABASES, 'host': namespaces.HOST,
    'interface': INTERFACE, 'keystone': KEYSTONE, 'password': PASSWORD,
    'rabbitmq': 'rabbit://guest:guest@127.0.0.1:5672/', 'state': place.STATE}


FILES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_CONF), keep_trailing_newline=True,
    undefined=jinja2.StrictUndefined)


def write(etc: pathlib.Path) -> None:
    """Write all files.

    :param etc: the directory, usually /etc
    """
    shutil.copytree(place.VENV / 'etc', etc, dirs_exist_ok=True)
    for name in FILES.list_templates():
        path = etc / name
        # A template outside of a folder is only included by others.
        if path.parent != etc:
            place.make(path.parent)
            path.write_text(render(name))


def render(name: str, **values: str) -> str:
    """Return a file's text.

    :param values: override the cloud's own values
    """
    return FILES.get_template(name).render({**_VALUES, **values})


def add(program: str, name: str, text: str) -> None:
    """Write a file that overrides a program's main configuration file.

    :param name: the file's name; an existing file is replaced
    :param text: an empty text removes the file
    """
    directory = _added(program)
    place.make(directory)
    file = directory / f'{name}.conf'
    if text:
        file.write_text(text)
    else:
        file.unlink(missing_ok=True)


def clear(program: str, but: str) -> list[str]:
    """Remove added files.

    :param but: the name of the file to leave
    :returns: the names of the removed files
    """
    files = [file for file in _added(program).glob('*.conf')
             if file.stem != but]
    for file in files:
        file.unlink()
    return [file.stem for file in files]


def _added(program):
    return pathlib.Path(f'/etc/{program}/{program}.conf.d')
