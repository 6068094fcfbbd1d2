# SPDX-License-Identifier: Apache-2.0
"""A guest of the real libvirt and QEMU, which says what it sees."""

import contextlib
import pathlib
import re
import shutil
import subprocess
import tempfile
import time

from lxml import builder
from lxml import etree

E = builder.ElementMaker()

_LINE = re.compile(r'^@ (there|gone|ready)(?: node=(-?\d+))?(?: (\S+))?\s*$',
                   re.MULTILINE)
#: Seconds; without KVM a start takes five to twenty.
_PATIENCE = 120


@contextlib.contextmanager
def running(domain, connect, kernel, busybox):
    """A guest, once it has said what there is.

    :param domain: its definition's element, without kernel and console
    :raises RuntimeError: with what libvirt or the guest's kernel says, if it
        does not come up
    """
    with tempfile.TemporaryDirectory() as directory:
        # QEMU need not be root.
        path = pathlib.Path(directory)
        path.chmod(0o777)
        console = path / 'console'
        console.touch(0o666)
        console.chmod(0o666)
        _give_kernel(domain, shutil.copy(kernel, path / 'kernel'),
                     _initrd(path, busybox), console)
        (path / 'domain.xml').write_text(
            etree.tostring(domain, encoding='unicode'))
        virsh = Virsh(connect)
        virsh('create', '--validate', str(path / 'domain.xml'))
        guest = Guest(virsh, domain.findtext('uuid'), path)
        try:
            guest.wait(lambda said: 'ready' in (kind for kind, *_ in said))
            yield guest
        finally:
            virsh('destroy', guest.uuid)


class Virsh:
    """:raises RuntimeError: with what libvirt says, if it does not"""

    def __init__(self, connect):
        self._connect = connect

    def __call__(self, *arguments):
        done = subprocess.run(
            ['virsh', '-q', '-c', self._connect, *arguments],
            capture_output=True, text=True, timeout=_PATIENCE)
        if done.returncode:
            raise RuntimeError(done.stderr.strip().replace('\n', '; '))
        return done.stdout


class Guest:
    """What it said, and ways to give it devices and take them."""

    def __init__(self, virsh, uuid, path):
        self._virsh = virsh
        self.uuid = uuid
        self._console = path / 'console'
        self._saved = path / 'saved'

    def xml(self):
        return etree.fromstring(self._virsh('dumpxml', self.uuid))

    def unplug(self, element):
        self._plug('detach-device', element)

    def plug(self, element):
        self._plug('attach-device', element)

    def _plug(self, command, element):
        with tempfile.NamedTemporaryFile('w', suffix='.xml') as file:
            file.write(etree.tostring(element, encoding='unicode'))
            file.flush()
            self._virsh(command, self.uuid, file.name, '--live')

    def sleep(self):
        """Have its memory saved and come back."""
        self._virsh('save', self.uuid, str(self._saved))
        self._virsh('restore', str(self._saved))

    def said(self):
        """Kind, NUMA node and path or address of all that it said."""
        return _LINE.findall(self._console.read_text(errors='replace'))

    def seen(self):
        """The NUMA node by the path of each device that is there."""
        there = {}
        for kind, node, path in self.said():
            if kind == 'there':
                there[path] = int(node)
            elif kind == 'gone':
                there = {known: node for known, node in there.items()
                         if not known.endswith(path)}
        return there

    def wait(self, until):
        """:raises RuntimeError: with the end of its console"""
        end = time.monotonic() + _PATIENCE
        while not until(self.said()):
            if time.monotonic() > end:
                raise RuntimeError('the guest says nothing more: '
                                   + self._console.read_text(
                                       errors='replace')[-2000:])
            time.sleep(0.2)


def _give_kernel(domain, kernel, initrd, console):
    os = domain.find('os')
    os.append(E.kernel(str(kernel)))
    os.append(E.initrd(str(initrd)))
    os.append(E.cmdline('console=ttyS0 quiet panic=-1'))
    domain.find('devices').append(E.serial(
        E.source(path=str(console), append='on'), E.target(port='0'),
        type='file'))


def _initrd(path, busybox):
    root = path / 'root'
    for name in ('bin', 'proc', 'sys', 'dev'):
        (root / name).mkdir(parents=True)
    shutil.copy(busybox, root / 'bin' / 'busybox')
    (root / 'bin' / 'sh').symlink_to('busybox')
    init = pathlib.Path(__file__).parent / 'init'
    shutil.copy(init, root / 'init')
    (root / 'init').chmod(0o755)
    names = subprocess.run(['find', '.'], cwd=root, capture_output=True,
                           check=True).stdout
    archive = subprocess.run(['cpio', '-o', '-H', 'newc', '--quiet'],
                             cwd=root, input=names, capture_output=True,
                             check=True).stdout
    (path / 'initrd').write_bytes(archive)
    return path / 'initrd'
