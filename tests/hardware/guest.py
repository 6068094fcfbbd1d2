# SPDX-License-Identifier: Apache-2.0
"""A guest that has devices and never runs."""

import contextlib
import subprocess
import tempfile

from lxml import builder
from lxml import etree

from nova_accel.core import model
from nova_accel.host import libvirt_xml

E = builder.ElementMaker()


@contextlib.contextmanager
def paused(uuid, devices):
    """A guest with devices; what libvirt says that it holds.

    :raises RuntimeError: with what libvirt says, if it does not start
    """
    with tempfile.NamedTemporaryFile('w', suffix='.xml') as file:
        file.write(etree.tostring(_domain(uuid, devices),
                                  encoding='unicode'))
        file.flush()
        _virsh('create', '--paused', file.name)
    try:
        yield libvirt_xml.parse(_virsh('dumpxml', uuid))[1]
    finally:
        _virsh('destroy', uuid)


def _virsh(*arguments) -> str:
    done = subprocess.run(['virsh', '-q', *arguments], capture_output=True,
                          text=True, timeout=120)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().replace('\n', '; '))
    return done.stdout


def _domain(uuid, devices):
    return E.domain(
        E.name(f'nova-accel-{uuid[:8]}'), E.uuid(uuid),
        E.memory('128', unit='MiB'), E.vcpu('1'),
        E.os(E.type('hvm', arch='x86_64', machine='q35')),
        E.devices(E.memballoon(model='none'), *map(_hostdev, devices)),
        type='qemu')


def _hostdev(device):
    alias = E.alias(name=device.alias)
    if isinstance(device.address, model.MdevAddress):
        return E.hostdev(E.source(E.address(uuid=device.address.uuid)), alias,
                         mode='subsystem', type='mdev', model='vfio-pci')
    at = device.address
    return E.hostdev(
        E.source(E.address(domain=f'0x{at.domain:04x}', bus=f'0x{at.bus:02x}',
                           slot=f'0x{at.slot:02x}',
                           function=f'0x{at.function:x}')),
        alias, mode='subsystem', type='pci',
        managed='yes' if device.managed else 'no')
