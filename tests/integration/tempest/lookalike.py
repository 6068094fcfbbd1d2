# SPDX-License-Identifier: Apache-2.0
"""A command on a machine without vfio whose guests see look-alikes.

    python -P lookalike.py COMMAND ARGUMENT...

As stage 1's pretend.py, which keeps hostdevs from libvirt; but QEMU is asked
to emulate a device (edu, 1234:11e8) in the place of each one that was kept. So
a guest has the device if, and only if, the XML that it was started with has
the hostdev. What vfio and a device of flesh do, it does not show.
"""

import pathlib
import sys

from lxml import etree

# Run as a file, by a Python that does not know where it is.
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
    """A domain's XML, as pretend.put_away has it, with look-alikes."""
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
    # Its classes look the name up when they are called.
    pretend.put_away = lambda xml: emulate(put_away(xml))
    pretend.main()


if __name__ == '__main__':
    main()
