# SPDX-License-Identifier: Apache-2.0
"""The files in /etc: those that the packages bring, and ours over them."""

import pathlib
import shutil

import jinja2

from tests.integration import namespaces
from tests.integration import place

KEYSTONE = 'http://127.0.0.1:5000/v3'
PASSWORD = 'secret'
#: One end of a cable that leads to its other end: the physical network.
INTERFACE = 'physical0'
DATABASES = f'mysql+pymysql://cloud:{PASSWORD}@127.0.0.1'

_CONF = pathlib.Path(__file__).parent / 'conf'
_VALUES = {
    'bin': place.BIN, 'databases': DATABASES, 'host': namespaces.HOST,
    'interface': INTERFACE, 'keystone': KEYSTONE, 'password': PASSWORD,
    'rabbitmq': 'rabbit://guest:guest@127.0.0.1:5672/', 'state': place.STATE}


def write(etc: pathlib.Path) -> None:
    """Write all files; what a test left in nova.conf.d stays."""
    shutil.copytree(place.VENV / 'etc', etc, dirs_exist_ok=True)
    loader = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_CONF), keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined)
    for name in loader.list_templates():
        path = pathlib.PurePath(name)
        if len(path.parts) > 1:
            place.make(etc / path.parent)
            (etc / path).write_text(loader.get_template(name).render(_VALUES))


def nova(name: str, text: str) -> None:
    """Write a file that all Nova services read after nova.conf."""
    directory = pathlib.Path('/etc/nova/nova.conf.d')
    place.make(directory)
    (directory / f'{name}.conf').write_text(text)
