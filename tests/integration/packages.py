# SPDX-License-Identifier: Apache-2.0
"""What is installed: from apt on the machine, from pip in an environment.

Nothing of what apt installs is started, neither now nor by us later: the cloud
starts its own, where they see nothing of the machine's.
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

#: OpenStack 2026.2, the clients, what it needs from us, and Ansible.
PIP = (
    'ansible', 'glance==33.0.0', 'keystone==30.0.0', 'neutron==29.0.0', 'nova',
    'openstack-placement', 'openstack-cyborg==17.0.0',
    'osc-placement', 'pymemcache', 'PyMySQL', 'python-memcached',
    'python-openstackclient', 'pyuwsgi')
#: What is compiled with what apt installs.
COMPILED = ('libvirt-python',)

#: uv's environment variables for pip's options.
_UV = {'index-url': 'UV_DEFAULT_INDEX', 'extra-index-url': 'UV_INDEX',
       'find-links': 'UV_FIND_LINKS', 'cert': 'SSL_CERT_FILE'}
_CONSTRAINTS = (place.CONSTRAINTS,
                pathlib.Path(__file__).parent / 'constraints.txt')
_PINNED = [word for file in _CONSTRAINTS for word in ('-c', str(file))]
_POLICY = pathlib.Path('/usr/sbin/policy-rc.d')
#: By which one that was left behind by a run that was killed is known.
_OURS = '#!/bin/sh\n# tests.integration, which installs packages\nexit 101\n'


def apt(*packages: str) -> None:
    """Install those of the packages that are not there yet.

    :raises Failure: if apt cannot
    """
    log = place.LOG / 'apt.log'
    environment = {**os.environ, 'DEBIAN_FRONTEND': 'noninteractive'}
    get = ('apt-get', '-q', '-o', 'DPkg::Lock::Timeout=600')
    if not shutil.which('apt-get'):
        raise steps.Failure('there is no apt-get to install packages with: '
                            'this is for Debian 12')
    missing = [name for name in packages if not _installed(name)]
    if missing:
        # Of a list that is old, half the packages are not there any more.
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
    """Have no package start its daemons, where that is not so already."""
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
    """Make the virtual environment of the cloud, but for COMPILED."""
    if not (place.BIN / 'uv').exists():
        steps.run(sys.executable, '-m', 'venv', place.VENV)
        steps.run(place.BIN / 'pip', 'install', '-q', *_PINNED, 'uv')
    _kept(PIP)


def compiled() -> None:
    """Add what is compiled, after apt."""
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

    :param python: that of the environment that they are for
    :raises Failure: if it cannot
    """
    steps.run(place.BIN / 'uv', 'pip', 'install', '--compile-bytecode',
              '--python', python, *_PINNED, *packages,
              log=place.LOG / 'pip.log', env=_like_pip())


def _like_pip():
    """An environment in which uv looks for packages where pip does."""
    environment = {**os.environ, 'UV_CACHE_DIR': str(place.CACHE / 'uv'),
                   'UV_INDEX_STRATEGY': 'unsafe-best-match'}
    for line in steps.run(place.BIN / 'pip', 'config', 'list').splitlines():
        key, _, value = line.partition('=')
        variable = _UV.get(key.rpartition('.')[2])
        if variable:
            environment[variable] = value.strip('\'"')
    return environment
