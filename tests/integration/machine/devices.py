# SPDX-License-Identifier: Apache-2.0
"""The machine's devices, as options of QEMU.

Each card is an ``accelerator`` (qemu/accelerator.c) behind its own root port
on the host bridge of a NUMA node. ``px0`` has buses from 0x40, ``px1`` has
buses from 0x80.
"""

from collections.abc import Iterable
from collections.abc import Iterator
import dataclasses
import pathlib

_MIB = 2 ** 20
#: Bytes of an NVMe disk.
_DISK = 64 * _MIB


@dataclasses.dataclass(frozen=True)
class Card:
    """An emulated accelerator that looks like a real card."""

    #: The id in QEMU, which ``device_del`` and ``qom-get`` take.
    name: str
    #: The NUMA node; None for a root complex integrated endpoint.
    node: int | None
    vendor: int
    device: int
    kind: int
    #: The base of its serial number; that of machine N is 0x10000 * N higher.
    serial: int
    subsystem: int = 1
    vfs: int = 0
    vf_device: int = 0
    vf_offset: int = 4
    #: Bytes of BAR 2 of the PF and of each VF.
    memory: int = _MIB
    vf_memory: int = _MIB
    #: More of QEMU's properties.
    more: dict[str, object] = dataclasses.field(default_factory=dict)


CARDS = (
    # A100 SXM4 40 GB. Its vGPUs are mdevs of drivers/nvidia.c.
    Card('a100', 0, 0x10de, 0x20b0, 0x0302, 0xa100, subsystem=0x1450, vfs=16,
         vf_device=0x20b0, memory=256 * _MIB, vf_memory=8 * _MIB),
    # H100 SXM.
    Card('h100', 1, 0x10de, 0x2330, 0x0302, 0x4100, subsystem=0x16c1, vfs=16,
         vf_device=0x2330, memory=512 * _MIB, vf_memory=8 * _MIB),
    # Programmable Acceleration Card with Arria 10 GX. It has the "hello" AFU
    # and the interface id of bitstreams for this card.
    Card('pac', 0, 0x8086, 0x09c4, 0x1200, 0x0a10, vfs=1, vf_device=0x09c5,
         more={'dfl': True, 'bitstream-id': 0x123000200000185,
               'afu-high': 0xd8424dc4a4a3c413, 'afu-low': 0xf89e433683f9040b,
               'interface-high': 0x69528db6eb31577a,
               'interface-low': 0x8c3668f9faa081f6}),
    # QuickAssist, C62x.
    Card('qat', 1, 0x8086, 0x37c8, 0x0b40, 0xc620, vfs=16, vf_device=0x37c9,
         vf_offset=8),
    # Alveo U250, and a U200 that cannot be reset: it has neither FLR nor a bus
    # of its own.
    Card('u250', 1, 0x10ee, 0x5000, 0x1200, 0xa250, subsystem=0xe),
    Card('u200', None, 0x10ee, 0x5004, 0x1200, 0xa200, subsystem=0xe),
)

#: Alveo V80: the first function of a card without Function Level Reset. After
#: a reset of the slot the kernel waits for its answer. With ARI, it finds the
#: second function only if the first names it.
DUO = Card('duo', 0, 0x10ee, 0x50b5, 0x1200, 0x50b5,
           more={'flr': False, 'x-pcie-ari-nextfn-1': True})


def arguments(folder: pathlib.Path, number: int) -> list[str]:
    """Return words of QEMU's command line.

    :param folder: the directory of disk images, which are created if missing
    :param number: the machine's number, from 1; it is part of serial numbers
    """
    return [*_backends(folder), *words(_devices(number))]


def words(devices: Iterable[dict[str, object]]) -> list[str]:
    """Return words of QEMU's command line for devices."""
    return [word for each in devices for word in ('-device', _option(each))]


def arguments_of(name: str, number: int) -> dict[str, object]:
    """Return the arguments of QMP's ``device_add`` for a device.

    :param name: the device's id
    :param number: the machine's number
    :raises KeyError: if there is no device with this id
    """
    return {each['id']: each for each in _devices(number)}[name]


def image_of(folder: pathlib.Path, name: str) -> pathlib.Path:
    """Return the file with the blocks of an NVMe disk.

    :param folder: as for `arguments`
    """
    return folder / f'{name}.img'


def _option(properties):
    return ','.join(f'{key}={_word(value)}'
                    for key, value in properties.items())


def _word(value):
    """Return a property's value for the command line."""
    if isinstance(value, bool):
        return 'on' if value else 'off'
    return value


def _backends(folder):
    backends = ['-netdev', 'user,id=igb-net,restrict=on']
    for name in ('nvme', 'pair0', 'pair1', 'disk'):
        image = image_of(folder, name)
        if not image.exists():
            with image.open('wb') as file:
                file.truncate(_DISK)
        backends += ['-drive',
                     f'file={image},if=none,id={name}-disk,format=raw']
    return backends


def _devices(number) -> Iterator[dict[str, object]]:
    yield from host_bridges()
    # A root complex integrated endpoint, which cannot be reset either.
    yield device('edu', 'edu', 'pcie.0', addr='05.0')
    ports = _Ports()
    for card in CARDS:
        if card.node is not None:
            yield ports.add(card.name, card.node, card)
            yield _accelerator(card, number, f'port-{card.name}')
        else:
            # The nodes' host bridges accept only bridges, so use pcie.0.
            yield _accelerator(card, number, 'pcie.0', addr='07.0')
    # Two devices behind a conventional PCI bridge share an IOMMU group.
    yield ports.add('bridge', 0)
    yield device('pcie-pci-bridge', 'bridge', 'port-bridge')
    yield device('edu', 'edu-bridged', 'bridge', addr='1.0')
    yield device('pci-testdev', 'testdev', 'bridge', addr='2.0')
    yield ports.add('igb', 1)
    yield device('igb', 'igb', 'port-igb', netdev='igb-net', romfile='')
    yield from _disks(ports, number)
    # Two functions in one slot, which cannot be reset alone.
    yield ports.add(DUO.name, 0, DUO)
    yield _accelerator(DUO, number, f'port-{DUO.name}', addr='0.0',
                       multifunction=True)
    yield device('edu', 'duo-edu', f'port-{DUO.name}', addr='0.1',
                 multifunction=True)
    # A disk for one server after another. Its ids are not those of the others.
    yield ports.add('disk', 0)
    yield device('nvme', 'disk', 'port-disk', serial=f'disk-{number}',
                 drive='disk-disk', **{'use-intel-id': True})


def host_bridges() -> Iterator[dict[str, object]]:
    """Yield the host bridge of each NUMA node."""
    for node in (0, 1):
        yield device('pxb-pcie', f'px{node}', 'pcie.0',
                     addr=f'{0x10 + node:x}.0', bus_nr=64 * (node + 1),
                     numa_node=node)


def _disks(ports, number):
    yield ports.add('nvme', 1)
    yield {'driver': 'nvme-subsys', 'id': 'nvme-subsystem'}
    yield device('nvme', 'nvme', 'port-nvme', serial=f'nvme-{number}',
                 subsys='nvme-subsystem', sriov_max_vfs=4,
                 sriov_vq_flexible=16, sriov_vi_flexible=8,
                 max_ioqpairs=18, msix_qsize=9)
    yield device('nvme-ns', 'nvme-namespace', 'nvme', drive='nvme-disk',
                 nsid=1, shared=True)
    # Two functions in one slot.
    yield ports.add('pair', 1)
    for function in (0, 1):
        name = f'pair{function}'
        yield device('nvme', name, 'port-pair', addr=f'0.{function}',
                     multifunction=True, serial=f'{name}-{number}',
                     drive=f'{name}-disk')


def _accelerator(card, number, bus, **properties):
    if card.vfs:
        properties |= {'total-vfs': card.vfs, 'vf-device-id': card.vf_device,
                       'vf-offset': card.vf_offset,
                       'vf-memory-size': card.vf_memory}
    return device(
        'accelerator', card.name, bus,
        **{'vendor-id': card.vendor, 'device-id': card.device,
           'subdevice-id': card.subsystem, 'class-id': card.kind,
           'serial': card.serial + 0x10000 * number,
           'memory-size': card.memory,
           'flr': card.node is not None,
           **card.more, **properties})


def device(driver: str, name: str, bus: str,
           **properties: object) -> dict[str, object]:
    """Return the arguments of QMP's ``device_add`` for a new device."""
    return {'driver': driver, 'id': name, 'bus': bus, **properties}


class _Ports:
    """Root ports, each with its own device number on a host bridge."""

    def __init__(self):
        self._count = [0, 0]

    def add(self, name: str, node: int, card: Card | None = None) -> dict:
        """Return a new port, named after the device behind it."""
        at = self._count[node]
        self._count[node] += 1
        slot = 16 * (node + 1) + at
        # Firmware reserves no address space for the BARs of VFs.
        room = {'mem-reserve': 8 * _MIB,
                'pref64-reserve': _room(card)} if card else {}
        return device('pcie-root-port', f'port-{name}', f'px{node}',
                      addr=f'{at:x}.0', chassis=slot, slot=slot, **room)


def _room(card):
    """Return bytes of address space for a card and its VFs.

    That is a power of two, at least twice the size of their memory.
    """
    return 2 << (card.memory + card.vfs * card.vf_memory - 1).bit_length()
