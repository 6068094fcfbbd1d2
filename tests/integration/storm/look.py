# SPDX-License-Identifier: Apache-2.0
"""Print what libvirt, QEMU and guests of a machine have, as JSON.

This runs in the machine with Nova's Python, for libvirt's module. It imports
no code of nova_accel, so its results are independent of the tested code.
"""

import json
import os
import pathlib
from xml.etree import ElementTree

import libvirt

_GROUPS = pathlib.Path('/sys/kernel/iommu_groups')
_FUNCTIONS = pathlib.Path('/sys/bus/pci/devices')
_MDEVS = pathlib.Path('/sys/bus/mdev/devices')
_INSTANCES = pathlib.Path('/var/lib/nova/instances')
_VFIO = '/dev/vfio/'


def main():
    print(json.dumps({
        'domains': _domains(), 'opened': list(_opened()), 'cards': _cards(),
        'consoles': _consoles()}))


def _domains():
    """Return the state and the hostdevs of each domain."""
    domains = libvirt.openReadOnly('qemu:///system').listAllDomains()
    return {domain.UUIDString(): facts for domain in domains
            if (facts := _domain(domain))}


def _domain(domain):
    try:
        return {'state': domain.state()[0], 'hostdevs': [
            _address(source) for source in
            ElementTree.fromstring(domain.XMLDesc()).iterfind(
                'devices/hostdev/source/address')]}
    except libvirt.libvirtError:
        # It was undefined meanwhile.
        return None


def _address(element):
    if element.get('uuid'):
        return element.get('uuid')
    domain, bus, slot, function = (int(element.get(part), 16) for part in
                                   ('domain', 'bus', 'slot', 'function'))
    return f'{domain:04x}:{bus:02x}:{slot:02x}.{function}'


def _opened():
    """Yield the server and the devices of each file of vfio in a QEMU."""
    for process in pathlib.Path('/proc').glob('[0-9]*'):
        try:
            words = (process / 'cmdline').read_text().split('\0')
            if '-uuid' not in words:
                continue
            for file in (process / 'fd').iterdir():
                name = os.readlink(file)
                if name.startswith(_VFIO) and name[len(_VFIO):].isdigit():
                    yield words[words.index('-uuid') + 1], _group(
                        name[len(_VFIO):])
        except (FileNotFoundError, ProcessLookupError):
            continue


def _group(number):
    return [name for name in os.listdir(_GROUPS / number / 'devices')
            if (_MDEVS / name).exists() or _is_vfio(_FUNCTIONS / name)]


def _is_vfio(function):
    driver = function / 'driver'
    return driver.exists() and os.path.basename(
        os.readlink(driver)).startswith('vfio')


def _cards():
    """Return the address of the PF of each VF and mdev."""
    found = {path.name: os.path.basename(os.readlink(path / 'physfn'))
             for path in _FUNCTIONS.iterdir() if (path / 'physfn').exists()}
    for path in _MDEVS.iterdir() if _MDEVS.is_dir() else ():
        parent = path.resolve().parent.name
        found[path.name] = found.get(parent, parent)
    return found


def _consoles():
    """Return what each guest has said, by its server."""
    return {path.parent.name: path.read_text(errors='replace')
            for path in _INSTANCES.glob('*/console.log')}


if __name__ == '__main__':
    main()
