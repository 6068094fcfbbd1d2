# SPDX-License-Identifier: Apache-2.0
"""Run a command for which libvirt lists a recorded machine's PCI devices.

    python -P node_devices.py SYSFS COMMAND ARGUMENT...

runs a command of this Python's environment, for example nova-compute. libvirt
lists the PCI functions in SYSFS as node devices. So Nova's own driver finds
the same devices that nova_accel finds with ``sysfs_root``. The devices cannot
be attached to servers. This is for servers without a device.
"""

import pathlib
import re
import runpy
import sys

import libvirt

_XML = """\
<device>
  <name>{name}</name>
  <parent>computer</parent>
  <capability type='pci'>
    <domain>{domain}</domain>
    <bus>{bus}</bus>
    <slot>{slot}</slot>
    <function>{function}</function>
    <product id='{product}'/>
    <vendor id='{vendor}'/>
    <numa node='{numa}'/>
  </capability>
</device>
"""


class NodeDevice:
    """The part of a virNodeDevice that Nova reads.

    :param function: the directory of a PCI function in sysfs
    """

    def __init__(self, function: pathlib.Path):
        self._function = function

    def name(self):
        return 'pci_' + re.sub('[:.]', '_', self._function.name)

    def parent(self):
        return 'computer'

    def listCaps(self):
        return ['pci']

    def XMLDesc(self, flags=0):
        address = dict(zip(
            ('domain', 'bus', 'slot', 'function'),
            (int(part, 16) for part in re.split('[:.]', self._function.name)),
            strict=True))
        return _XML.format(
            name=self.name(), product=self._text('device'),
            vendor=self._text('vendor'), numa=self._text('numa_node'),
            **address)

    def _text(self, attribute):
        return (self._function / attribute).read_text().strip()


def install(sysfs: pathlib.Path) -> None:
    """Make libvirt list the functions of a sysfs as node devices."""
    class Connection(libvirt.virConnect):
        def listAllDevices(self, flags=0):
            if not flags & libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_PCI_DEV:
                return super().listAllDevices(flags)
            return [NodeDevice(function) for function in sorted(
                (sysfs / 'bus/pci/devices').iterdir())]

    libvirt.virConnect = Connection


def main() -> None:
    _, sysfs, command, *arguments = sys.argv
    path = pathlib.Path(sys.executable).with_name(command)
    sys.argv = [str(path), *arguments]
    install(pathlib.Path(sysfs))
    runpy.run_path(str(path), run_name='__main__')


if __name__ == '__main__':
    main()
