# SPDX-License-Identifier: Apache-2.0
"""Linux namespaces that separate the cloud from the machine.

The cloud has its own network, mounts, processes and host name. Its services
listen only on the cloud's loopback device and read the cloud's own /etc. They
do not collide with the machine's services. They end with the first process of
the namespaces, ``python -m tests.integration.namespaces COMMAND...``. This
process prepares mounts and network, starts the command and reaps processes.
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
#: Directories whose changes stay within the cloud.
_OVERLAID = ('/etc', '/var/lib/libvirt', '/var/cache/libvirt')
_HOLDER = place.STATE / 'holder'


def begin(*command: str) -> NoReturn:
    """Replace this process by the holder of new namespaces.

    However the holder ends, all processes in the namespaces end with it.

    :param command: runs in the namespaces
    """
    place.make(place.STATE)
    _HOLDER.write_text(str(os.getpid()))
    os.chdir(place.ROOT)
    os.execvp('unshare', [
        'unshare', *_KINDS, '--fork', '--kill-child', '--mount-proc',
        sys.executable, '-m', __name__, *command])


def enter(*command: str) -> NoReturn:
    """Replace this process by a command in the running cloud's namespaces.

    :raises Failure: if no cloud is running
    """
    first = _first()
    if first is None:
        raise steps.Failure('no cloud is up: start one with '
                            '"python -m tests.integration up"')
    os.execvp('nsenter', ['nsenter', '--target', str(first), *_KINDS,
                          'env', '-C', str(place.ROOT), *command])


def inside() -> bool:
    """Whether this process runs in the cloud's namespaces."""
    return socket.gethostname() == HOST


def end() -> None:
    """Take down the running cloud, if any."""
    first = _first()
    if first is not None:
        os.kill(first, signal.SIGTERM)
        steps.wait('the end of the cloud', lambda: _first() is None, 60)


def up() -> bool:
    return _first() is not None


def _first():
    """Return the id outside of the namespaces of their first process."""
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
    # The new /sys shows the devices of the network namespace. It hides the
    # machine's cgroups from libvirt.
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
    """Replace a device node, if it exists, by an inaccessible file.

    If QEMU's user has no access to an existing /dev/kvm, libvirt probes QEMU's
    capabilities again and again. Each time takes seconds.
    """
    if device.exists():
        nothing = place.RUN / 'nothing'
        nothing.touch(0)
        steps.run('mount', '--bind', nothing, device)


def _reap(command) -> int:
    """Run a command, and reap it and all orphaned processes."""
    # The command handles SIGINT. This process must not end before it.
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
