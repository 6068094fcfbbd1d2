# SPDX-License-Identifier: Apache-2.0
"""Run a command without vfio, with emulated devices in place of hostdevs.

    python -P lookalike.py COMMAND ARGUMENT...

Like stage1/pretend.py, it hides hostdevs from libvirt. In addition, QEMU
emulates a device (edu, 1234:11e8) for each hidden hostdev. So a guest has the
device if and only if the domain's XML at its start has the hostdev. This does
not test vfio or a real device.
"""

import pathlib
import sys

from lxml import etree

# With -P, Python does not add this file's directory to sys.path.
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / 'stage1'))

import pretend

_QEMU = 'http://libvirt.org/schemas/domain/qemu/1.0'
_LINE = f'{{{_QEMU}}}commandline'
_ARGUMENT = f'{{{_QEMU}}}arg'
_HELD = etree.XPath(
    'metadata/held:held/hostdev', namespaces={'held': pretend.NAMESPACE})

#: Slots of the root bus that libvirt leaves free.
_SLOTS = range(0x10, 0x18)


def emulate(xml: str) -> str:
    """Add emulated devices to a domain's XML of pretend.put_away()."""
    domain = etree.fromstring(xml)
    for line in domain.findall(_LINE):
        domain.remove(line)
    held = _HELD(domain)
    if not held:
        return etree.tostring(domain, encoding='unicode')
    root = etree.Element('domain', domain.attrib, {'qemu': _QEMU})
    root.extend(domain)
    line = etree.SubElement(root, _LINE)
    for slot, _hostdev in zip(_SLOTS, held, strict=False):
        for word in '-device', f'edu,bus=pcie.0,addr={slot:#x}':
            etree.SubElement(line, _ARGUMENT, value=word)
    return etree.tostring(root, encoding='unicode')


def main() -> None:
    put_away = pretend.put_away
    # The classes of pretend.py look this name up at each call.
    pretend.put_away = lambda xml: emulate(put_away(xml))
    pretend.main()


if __name__ == '__main__':
    main()
