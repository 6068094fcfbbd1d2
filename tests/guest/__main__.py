# SPDX-License-Identifier: Apache-2.0
"""Where a guest sees its devices: ``python -m tests.guest KERNEL``.

Where libvirt, QEMU, Nova, cpio and a static busybox are; KVM is not needed.
KERNEL is a Linux with NUMA and a serial console, as distributions have it. One
guest is q35 with two NUMA cells, another has none. Both have virtio devices in
place of hostdevs, where hostdevs would be, some of them behind switches. What
its kernel says of them is compared with what a guest would be told; then one
is unplugged, the guest's memory saved and restored, and the device plugged in
where it was, as it goes with a server that is suspended.
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
from nova_accel.compute.guest import pci_buses
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.host import libvirt_xml
from tests.guest import machine
from tests.guest import numa

#: The location of each device on the host. The guest's cells are the other way
#: round; node 2 is none of its, and node 3 has no CPUs.
PLACES = (
    model.Location(0, 'pci0000:40', switch='a'),
    model.Location(0, 'pci0000:40'), model.Location(1, 'pci0000:80'),
    model.Location(1, 'pci0000:c0'), model.Location(0, 'pci0000:40',
                                                    switch='a'),
    model.Location(1, 'pci0000:80'), model.Location(2, 'pci0001:00'),
    model.Location(None, 'pci0002:00', switch='b'),
    model.Location(None, 'pci0002:00', switch='b'),
    model.Location(1, 'pci0003:00', cpuless_node=3))
NODES = (1, 0)
HOST = model.Host(numa_nodes=(0, 1, 2), cpuless_nodes={3: 1}, distances={
    node: {other: 10 if node == other else 20 + 10 * abs(node - other)
           for other in range(4)} for node in range(4)})


def main() -> int:
    arguments = _arguments()
    nova.conf.CONF([], project='nova', default_config_files=[])
    conf.register_opts(nova.conf.CONF)
    rows = []
    for nodes in NODES, ():
        domain = _domain(nodes, arguments.ports)
        if arguments.loader:
            domain.find('os').append(machine.E.loader(arguments.loader,
                                                      type='rom'))
        with machine.running(domain, arguments.connect, arguments.kernel,
                             arguments.busybox) as guest:
            planned = _told(guest)
            rows += _compare(planned, guest.seen())
            rows.append(_again(guest, planned))
    table = prettytable.PrettyTable(
        ['device', 'cell', 'address', 'path', 'in the guest', ''])
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


def _domain(nodes, ports):
    """A definition as Nova and we make it."""
    guest = numa.define(nodes, ports, 'q35')
    guest.virt_type = 'qemu'
    guest.name = 'nova-accel-guest'
    guest.uuid = str(uuid.uuid4())
    guest.memory = 2 * numa.MEMORY
    guest.vcpus = 2
    guest.os_type = 'hvm'
    guest.features.append(vconfig.LibvirtConfigGuestFeatureACPI())
    located = {model.PciAddress(0, 0x40 + index, 0, 0): place
               for index, place in enumerate(PLACES)}
    places = pci_buses.add(guest, located, HOST, switches=True)
    hostdev_xml.add(guest, tuple(
        hostdev.Hostdev(address, naming.alias('ACCEL0', guest.uuid, index))
        for index, address in enumerate(located)), places)
    # The machine that this runs on need not have the nodes.
    guest.numatune = None
    domain = etree.fromstring(guest.to_xml())
    for element in domain.iterfind('devices/hostdev'):
        element.getparent().replace(element, _stand_in(element))
    return domain


def _stand_in(element):
    E = machine.E
    stand_in = E.rng(E.backend('/dev/urandom', model='random'), model='virtio')
    stand_in.extend(element.findall('alias') + element.findall('address'))
    return stand_in


def _told(guest):
    """Return the domain's element, and the Position, of each stand-in."""
    xml = guest.xml()
    buses = libvirt_xml.guest_buses_of(etree.tostring(xml).decode())
    return [(element, buses.position(model.PciAddress(
        0, *(int(element.find('address').get(part), 16)
             for part in ('bus', 'slot', 'function')))))
        for element in xml.iterfind('devices/rng')]


def _compare(planned, seen):
    """What a guest would be told of each device, and what it says."""
    return [_row(place, position, seen)
            for place, (_element, position) in zip(PLACES, planned,
                                                   strict=True)]


def _row(place, position, seen, what=''):
    path, node = next(((path, node) for path, node in seen.items()
                       if path.endswith(f'/{position.address}')),
                      ('not there', None))
    cell = -1 if position.cell is None else position.cell
    return [f'{place.root} node {place.numa_node} {place.cpuless_node or ""} '
            f'{place.switch or ""}{what}', cell, position.address,
            position.path, f'{path} node={node}',
            'ok' if (_short(path), node) == (position.path, cell)
            else 'NOT AS IT IS TOLD']


def _short(path):
    """Return a path of sysfs in our form, ``c8/00.0/00.0``."""
    root, *steps = path.removeprefix('/sys/devices/pci0000:').split('/')
    return '/'.join([root, *(step.rpartition(':')[2] for step in steps)])


def _again(guest, planned):
    """Have the guest sleep without the last one, and plug it in."""
    element, position = planned[-1]

    def is_there():
        return any(path.endswith(f'/{position.address}')
                   for path in guest.seen())

    guest.unplug(element)
    guest.wait(lambda _said: not is_there())
    guest.sleep()
    guest.plug(_stand_in(element))
    guest.wait(lambda _said: is_there())
    return _row(PLACES[-1], position, guest.seen(), ' again')


if __name__ == '__main__':
    sys.exit(main())
