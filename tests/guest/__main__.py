# SPDX-License-Identifier: Apache-2.0
"""Where a guest sees its devices: ``python -m tests.guest KERNEL``.

Where libvirt, QEMU, Nova, cpio and a static busybox are; KVM is not needed.
KERNEL is a Linux with NUMA and a serial console, as distributions have it. The
guest is q35, with two NUMA cells, and has virtio devices in place of hostdevs,
where hostdevs would be. What its kernel says of them is compared with what was
planned; then one is unplugged, the guest's memory saved and restored, and the
device plugged in where it was, as it goes with a server that is suspended.
"""

import argparse
import sys
import uuid

from lxml import etree
import nova.conf
from nova.virt.libvirt import config as vconfig
import prettytable

from nova_accel import conf
from nova_accel.compute.guest import hostdev_xml
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.guest import pcie_topology
from tests.guest import machine
from tests.guest import numa

#: The host's NUMA node and root bridge of each device. The guest's cells are
#: the other way round; node 2 is none of its.
PLACES = ((0, 'pci0000:40'), (0, 'pci0000:40'), (1, 'pci0000:80'),
          (1, 'pci0000:c0'), (0, 'pci0000:00'), (1, 'pci0000:80'),
          (2, 'pci0001:00'), (None, 'pci0002:00'))
NODES = (1, 0)


def main() -> int:
    arguments = _arguments()
    nova.conf.CONF([], project='nova', default_config_files=[])
    conf.register_opts(nova.conf.CONF)
    domain, buses = _domain(arguments.ports)
    if arguments.loader:
        domain.find('os').append(machine.E.loader(arguments.loader,
                                                  type='rom'))
    with machine.running(domain, arguments.connect, arguments.kernel,
                         arguments.busybox) as guest:
        rows = _compare(buses, guest.seen())
        rows.append(_again(guest, buses))
    table = prettytable.PrettyTable(
        ['device', 'cell', 'in the guest', 'its node', ''])
    table.align = 'l'
    table.add_rows(rows)
    print(table)
    return 0 if all(row[-1] == 'ok' for row in rows) else 1


def _arguments():
    parser = argparse.ArgumentParser('guest', description=__doc__)
    parser.add_argument('kernel')
    parser.add_argument('--busybox', default='/bin/busybox')
    parser.add_argument('--connect', default='qemu:///system')
    parser.add_argument('--loader', help='firmware in place of SeaBIOS, say '
                        '/usr/share/ovmf/OVMF.fd')
    parser.add_argument('--ports', type=int, default=0,
                        help='as in [libvirt] num_pcie_ports')
    return parser.parse_args()


def _domain(ports):
    """A definition as Nova and we make it, and what was planned for it."""
    guest = numa.define(NODES, ports, 'q35')
    guest.virt_type = 'qemu'
    guest.name = 'nova-accel-guest'
    guest.uuid = str(uuid.uuid4())
    guest.memory = 512 * 1024
    guest.vcpus = 2
    guest.os_type = 'hvm'
    guest.features.append(vconfig.LibvirtConfigGuestFeatureACPI())
    guest.cpu = vconfig.LibvirtConfigGuestCPU()
    guest.cpu.mode, guest.cpu.numa = None, vconfig.LibvirtConfigGuestCPUNUMA()
    for number in range(len(NODES)):
        cell = vconfig.LibvirtConfigGuestCPUNUMACell()
        cell.id, cell.cpus, cell.memory = number, {number}, 256 * 1024
        guest.cpu.numa.cells.append(cell)
    located = {model.PciAddress(0, 0x40 + index, 0, 0):
               model.Location(node, root)
               for index, (node, root) in enumerate(PLACES)}
    hostdev_xml.add(guest, tuple(
        hostdev.Hostdev(address, naming.alias('ACCEL0', guest.uuid, index))
        for index, address in enumerate(located)), located)
    buses = pcie_topology.plan(located, {
        node: cell for cell, node in enumerate(NODES)}, ports + 1)
    # The machine that this runs on need not have the nodes.
    guest.numatune = None
    domain = etree.fromstring(guest.to_xml())
    for element in domain.iterfind('devices/hostdev'):
        element.getparent().replace(element, _stand_in(
            element.find('address')))
    return domain, buses


def _stand_in(address):
    E = machine.E
    element = E.rng(E.backend('/dev/urandom', model='random'), model='virtio')
    if address is not None:
        element.append(address)
    return element


def _compare(buses, seen):
    """What was planned of each device, and what its guest says."""
    rows = []
    left = {path: node for path, node in seen.items()
            if len(path.split('/')) == 6}
    for bus in buses:
        for port in bus.ports:
            path, node = _below(bus, port, left)
            left.pop(path, None)
            rows.append([port.holds, bus.cell, path, node,
                         'ok' if node == bus.cell else 'NOT ON ITS CELL'])
    rows += [['another', '', path, node, 'ok' if node == -1 else 'ON A NODE']
             for path, node in left.items()]
    planned = sum(len(bus.ports) for bus in buses)
    if len(left) + planned < len(PLACES):
        rows.append(['', '', f'{len(left)} others', '', 'SOME ARE MISSING'])
    return rows


def _below(bus, port, seen):
    """Path and node of the device in a root port, as the guest has them."""
    start = (f'/sys/devices/pci0000:{bus.number:02x}/0000:{bus.number:02x}:'
             f'{port.slot:02x}.{port.function}/')
    return next(((path, node) for path, node in seen.items()
                 if path.startswith(start)), ('not there', None))


def _again(guest, buses):
    """Have the guest sleep without the last one planned, and plug it in."""
    bus = buses[-1]
    port = bus.ports[-1]
    path, _node = _below(bus, port, guest.seen())
    [device] = [element for element in guest.xml().iterfind('devices/rng')
                if int(element.find('address').get('bus'), 16) == port.index]
    guest.unplug(device)
    guest.wait(lambda _said: path not in guest.seen())
    guest.sleep()
    guest.plug(_stand_in(device.find('address')))
    guest.wait(lambda _said: _below(bus, port, guest.seen())[1] is not None)
    again, node = _below(bus, port, guest.seen())
    return [f'{port.holds} again', bus.cell, again, node,
            'ok' if (again, node) == (path, bus.cell) else 'ELSEWHERE']


if __name__ == '__main__':
    sys.exit(main())
