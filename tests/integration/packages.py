# SPDX-License-Identifier: Apache-2.0
"""Debian packages on the machine, Python packages in an environment.

The packages' daemons are not started on the machine. The cloud runs its own
daemons in its namespaces.
"""

import contextlib
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys

from tests.integration import place
from tests.integration import steps

APT = (
    'busybox-static', 'cpio', 'gcc', 'iproute2', 'libc6-dev',
    'libvirt-clients', 'libvirt-daemon-system', 'libvirt-dev',
    'mariadb-server', 'memcached', 'pkg-config', 'python3-dev',
    'qemu-system-x86', 'qemu-utils', 'rabbitmq-server')

#: OpenStack 2026.2, clients, drivers for the database and caches, and Ansible.
PIP = (
    'ansible', 'glance==33.0.0', 'keystone==30.0.0', 'neutron==29.0.0', 'nova',
    'openstack-placement', 'openstack-cyborg==17.0.0',
    'osc-placement', 'pymemcache', 'PyMySQL', 'python-memcached',
    'python-openstackclient', 'pyuwsgi')
#: Packages that are compiled against the Debian packages.
COMPILED = ('libvirt-python',)

#: uv's environment variables for pip's options.
_UV = {'index-url': 'UV_DEFAULT_INDEX', 'extra-index-url': 'UV_INDEX',
       'find-links': 'UV_FIND_LINKS', 'cert': 'SSL_CERT_FILE'}
_CONSTRAINTS = (place.CONSTRAINTS,
                pathlib.Path(__file__).parent / 'constraints.txt')
_PINNED = [word for file in _CONSTRAINTS for word in ('-c', str(file))]
_POLICY = pathlib.Path('/usr/sbin/policy-rc.d')
#: This text identifies the file that a killed run has left behind.
_OURS = '#!/bin/sh\n# tests.integration, which installs packages\nexit 101\n'


def apt(*packages: str) -> None:
    """Install the missing ones of these Debian packages.

    :raises Failure: if apt-get fails
    """
    log = place.LOG / 'apt.log'
    environment = {**os.environ, 'DEBIAN_FRONTEND': 'noninteractive'}
    get = ('apt-get', '-q', '-o', 'DPkg::Lock::Timeout=600')
    if not shutil.which('apt-get'):
        raise steps.Failure('there is no apt-get to install packages with: '
                            'this is for Debian 12')
    missing = [name for name in packages if not _installed(name)]
    if missing:
        # An old package list names versions that the mirror has deleted.
        steps.run(*get, 'update', log=log, env=environment)
        with _nothing_started():
            steps.run(*get, 'install', '-y', '--no-install-recommends',
                      *missing, log=log, env=environment)


def _installed(name):
    done = subprocess.run(['dpkg-query', '-W', '-f', '${Status}', name],
                          capture_output=True, text=True)
    return done.stdout.endswith('ok installed')


@contextlib.contextmanager
def _nothing_started():
    """Keep packages from starting daemons, with a policy-rc.d.

    A policy-rc.d of the machine's own is left alone.
    """
    if _POLICY.exists() and _POLICY.read_text() != _OURS:
        yield
        return
    _POLICY.write_text(_OURS)
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink()


def environment() -> None:
    """Make the cloud's virtual environment, without COMPILED."""
    if not (place.BIN / 'uv').exists():
        steps.run(sys.executable, '-m', 'venv', place.VENV)
        steps.run(place.BIN / 'pip', 'install', '-q', *_PINNED, 'uv')
    _kept(PIP)


def compiled() -> None:
    """Install COMPILED, which needs the Debian packages."""
    _kept(COMPILED)


def _kept(packages):
    key = hashlib.sha256(' '.join(packages).encode() + b''.join(
        file.read_bytes() for file in _CONSTRAINTS)).hexdigest()
    stamp = place.VENV / f'{packages[0].partition("=")[0]}.installed'
    if not (stamp.exists() and stamp.read_text() == key):
        uv(place.BIN / 'python', *packages)
        stamp.write_text(key)


def uv(python: str | os.PathLike, *packages: str) -> None:
    """Install packages with uv, which takes a third of pip's time.

    :param python: the interpreter of the environment to install into
    :raises Failure: if uv fails
    """
    steps.run(place.BIN / 'uv', 'pip', 'install', '--compile-bytecode',
              '--python', python, *_PINNED, *packages,
              log=place.LOG / 'pip.log', env=_like_pip())


def _like_pip():
    """Return environment variables that give uv the indexes of pip."""
    environment = {**os.environ, 'UV_CACHE_DIR': str(place.CACHE / 'uv'),
                   'UV_INDEX_STRATEGY': 'unsafe-best-match'}
    for line in steps.run(place.BIN / 'pip', 'config', 'list').splitlines():
        key, _, value = line.partition('=')
        variable = _UV.get(key.rpartition('.')[2])
        if variable:
            environment[variable] = value.strip('\'"')
    return environment
