# SPDX-License-Identifier: Apache-2.0
"""MariaDB's databases, filled by the services' own commands."""

import hashlib
import pathlib
import shutil

from tests.integration import packages
from tests.integration import place
from tests.integration import steps
from tests.integration.cloud import configuration

_NAMES = ('keystone', 'placement', 'glance', 'neutron', 'nova_api',
          'nova_cell0', 'nova_cell1', 'cyborg')
#: Keystone's keys, which belong to the contents of its tables.
_KEYS = (pathlib.Path('/etc/keystone/fernet-keys'),
         pathlib.Path('/etc/keystone/credential-keys'))
#: The directories to keep for later runs.
_FILES = (place.STATE / 'mysql', *_KEYS)
_URL = configuration.KEYSTONE


def kept() -> pathlib.Path:
    """Return the directory of kept databases.

    Its name has a hash of this file and of the packages.
    """
    key = hashlib.sha256(pathlib.Path(__file__).read_bytes()
                         + ' '.join(packages.PIP).encode()).hexdigest()
    return place.CACHE / f'databases-{key[:12]}'


def keep() -> None:
    """Keep a copy of the databases; MariaDB must not be running."""
    new = kept().with_suffix('.new')
    shutil.rmtree(new, ignore_errors=True)
    for directory in _FILES:
        shutil.copytree(directory, new / directory.name)
    new.rename(kept())


def restore() -> bool:
    """Restore kept databases; return whether there were any."""
    if not kept().exists():
        return False
    for directory in _FILES:
        shutil.copytree(kept() / directory.name, directory)
    return True


def install() -> None:
    """Create MariaDB's system tables before its first start."""
    steps.run('mariadb-install-db', '--user=root', '--skip-test-db',
              '--auth-root-authentication-method=socket',
              log=place.LOG / 'mariadb-install.log')


def create() -> None:
    """Create empty databases and their user."""
    statements = [f'create database if not exists {name}' for name in _NAMES]
    for host in ('127.0.0.1', 'localhost'):
        statements += [
            f"create user if not exists cloud@'{host}' "
            f"identified by '{configuration.PASSWORD}'",
            f"grant all on *.* to cloud@'{host}'"]
    steps.run('mariadb', '-e', ';'.join(statements))


def fill() -> None:
    """Create the tables of all services."""
    steps.at_once(_keystone, _nova, lambda: _manage(
        'neutron-db-manage', 'upgrade', 'heads'), lambda: _manage(
        'placement-manage', 'db', 'sync'), lambda: _manage(
        'glance-manage', 'db_sync'))


def _keystone():
    _manage('keystone-manage', 'db_sync')
    for keys in _KEYS:
        place.make(keys)
        _manage('keystone-manage', keys.name.replace('-keys', '_setup'),
                '--keystone-user', 'root', '--keystone-group', 'root')
    _manage('keystone-manage', 'bootstrap', '--bootstrap-password',
            configuration.PASSWORD, '--bootstrap-region-id', 'RegionOne',
            *(word for kind in ('public', 'internal', 'admin')
              for word in (f'--bootstrap-{kind}-url', _URL)))


def _nova():
    url = f'{configuration.DATABASES}/nova_cell%d?charset=utf8mb4'
    _manage('nova-manage', 'api_db', 'sync')
    _manage('nova-manage', 'cell_v2', 'map_cell0', '--database_connection',
            url % 0)
    _manage('nova-manage', 'cell_v2', 'create_cell', '--name', 'cell1')
    _manage('nova-manage', 'db', 'sync')


def _manage(program, *words):
    steps.run(place.BIN / program, *words, log=place.LOG / f'{program}.log')
