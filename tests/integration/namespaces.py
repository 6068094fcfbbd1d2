# SPDX-License-Identifier: Apache-2.0
"""Namespaces: a machine's view of its own for the cloud.

Network, mounts, processes and host name are the cloud's own. So its services
listen on nothing but a loopback device that nobody else has, read an /etc of
their own, collide with nothing on the machine, and are gone with the first
process. ``python -m tests.integration.namespaces COMMAND...`` is that process,
inside: it prepares the place, starts the command and reaps.
"""

import os
import pathlib
import signal
import socket
import subprocess
import sys
from typing import NoReturn

from tests.integration import place
from tests.integration import steps

HOST = 'cloud'

_KINDS = ('--net', '--mount', '--pid', '--uts', '--ipc')
#: Directories that services write to, which nobody else sees written.
_OVERLAID = ('/etc', '/var/lib/libvirt', '/var/cache/libvirt')
_HOLDER = place.STATE / 'holder'


def begin(*command: str) -> NoReturn:
    """Become the holder of new namespaces, with a command in them.

    With the holder, however it ends, all that is in them ends.
    """
    place.make(place.STATE)
    _HOLDER.write_text(str(os.getpid()))
    os.chdir(place.ROOT)
    os.execvp('unshare', [
        'unshare', *_KINDS, '--fork', '--kill-child', '--mount-proc',
        sys.executable, '-m', __name__, *command])


def enter(*command: str) -> NoReturn:
    """Become a command in the namespaces of the cloud that is up.

    :raises Failure: if there is none
    """
    first = _first()
    if first is None:
        raise steps.Failure('no cloud is up: start one with '
                            '"python -m tests.integration up"')
    os.execvp('nsenter', ['nsenter', '--target', str(first), *_KINDS,
                          'env', '-C', str(place.ROOT), *command])


def inside() -> bool:
    """Whether this process is in them already."""
    return socket.gethostname() == HOST


def end() -> None:
    """Have the cloud that is up, if any, taken down."""
    first = _first()
    if first is not None:
        os.kill(first, signal.SIGTERM)
        steps.wait('the end of the cloud', lambda: _first() is None, 60)


def up() -> bool:
    return _first() is not None


def _first():
    """The id, out here, of the first process in the namespaces."""
    try:
        holder = int(_HOLDER.read_text())
        name = pathlib.Path(f'/proc/{holder}/comm').read_text().strip()
        [child] = pathlib.Path(
            f'/proc/{holder}/task/{holder}/children').read_text().split()
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return None
    return int(child) if name == 'unshare' else None


def _prepare():
    steps.run('hostname', HOST)
    steps.run('ip', 'link', 'set', 'lo', 'up')
    # That of the network namespace, with its devices; and without cgroups,
    # which libvirt would find though they are the machine's.
    steps.run('umount', '--lazy', '--recursive', '/sys')
    steps.run('mount', '-t', 'sysfs', 'sysfs', '/sys')
    steps.run('mount', '-t', 'tmpfs', '-o', 'mode=755', 'tmpfs', '/run')
    for directory in _OVERLAID:
        _overlay(pathlib.Path(directory))
    _hide(pathlib.Path('/dev/kvm'))


def _overlay(directory):
    name = '-'.join(directory.parts[1:])
    upper, work = place.STATE / name, place.STATE / 'overlay' / name
    place.make(upper, work)
    steps.run('mount', '-t', 'overlay', 'overlay', '-o',
              f'lowerdir={directory},upperdir={upper},workdir={work}',
              directory)


def _hide(device):
    """Have a device, if it is there, look as if it were not.

    A /dev/kvm that QEMU's user may not open makes libvirt ask QEMU again what
    it can at every turn, which takes seconds.
    """
    if device.exists():
        nothing = place.RUN / 'nothing'
        nothing.touch(0)
        steps.run('mount', '--bind', nothing, device)


def _reap(command) -> int:
    """Start a command; wait for it, and for all that nobody else waits for."""
    # The command has its own ways with these; we only must not end first.
    signal.signal(signal.SIGINT, lambda *_: None)
    child = subprocess.Popen(command)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    while True:
        pid, status = os.wait()
        if pid == child.pid:
            return os.waitstatus_to_exitcode(status)


def main() -> int:
    place.make(place.RUN, place.LOG)
    try:
        _prepare()
    except steps.Failure as error:
        print(f'no namespaces for the cloud: {error}', file=sys.stderr)
        return 1
    return abs(_reap(sys.argv[1:]))


if __name__ == '__main__':
    sys.exit(main())
