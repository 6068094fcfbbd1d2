# SPDX-License-Identifier: Apache-2.0
"""A simulation of NVIDIA's vGPU manager, the vendor-specific VFIO framework.

The simulation and tests/data/hosts/l40s-modelled.json follow publications of
NVIDIA and its users. They were not compared with hardware. The file has two
L40S, one on each NUMA node, with 8 VFs each and some of their types. The
sources are:

- the Virtual GPU Software User Guide: the files and the modes of a card;
- nvidia-vgpu-vfio in the driver's package: the format of the lists, and EPERM
  if a type is set over another or 0 is set twice;
- the series "NVIDIA vGPU VFIO" on the kernel's mailing lists: EBUSY while a
  guest has the VF;
- reports of users: EIO if the card has no room, lists that shrink to their
  header as the card fills up, and empty lists in MIG mode without GPU
  instances.

The simulation ignores the placements on a card with vGPUs of several sizes. A
vGPU fits if the card has enough memory.
"""

import errno
import os
import pathlib
import re

import fixtures

from nova_accel.host import operations

#: All vGPUs of a card have frame buffers of the same size. The default mode.
EQUAL = 'equal'
#: Their sizes may differ (nvidia-smi vgpu -shm 1).
MIXED = 'mixed'

#: The memory of an L40S in GB.
MEMORY = 48

HEADER = 'ID    : vGPU Name\n'


class VgpuManager(fixtures.Fixture):
    """Simulates how the driver handles types that are written to VFs.

    :param machine: the directory that contains ``sys``
    :param mode: EQUAL or MIXED; for cards in MIG mode, the number of GPU
        instances of each size, for example {'1-6': 2}
    """

    def __init__(self, machine, mode=EQUAL):
        self._vfs = pathlib.Path(machine).resolve() / 'sys/bus/pci/devices'
        self.mode = mode
        #: All writes in order: (VF, number).
        self.writes = []
        #: VFs that a guest has open.
        self.open = set()
        #: Called before each write. The write fails with its exception.
        self.on_write = lambda vf, number: None

    def _setUp(self):
        self.types = _parse(next(self._vfs.glob(
            '*/nvidia/creatable_vgpu_types')).read_text())
        self._others = operations.write
        self.useFixture(fixtures.MonkeyPatch(
            'nova_accel.host.operations.write', self._write))
        self.list()

    def current(self):
        """Return the types that are set, by VF."""
        return {path.parts[-3]: number for path in sorted(
            self._vfs.glob('*/nvidia/current_vgpu_type'))
            if (number := int(path.read_text()))}

    def reboot(self):
        """Reset all VFs, as types do not survive a reload of the driver."""
        self.open.clear()
        for vf in self.current():
            self.set(vf, 0)

    def set(self, vf, number):
        """Set a type, as an administrator would."""
        (self._vfs / vf / 'nvidia/current_vgpu_type').write_text(
            f'{number}\n')
        self.list()

    def list(self):
        """Update the lists of types that fit on each card."""
        lists = {}
        for path in self._vfs.glob('*/nvidia/creatable_vgpu_types'):
            card = self._card(path.parts[-3])
            if card not in lists:
                there = self._there(card)
                lists[card] = HEADER + ''.join(
                    f'{number:<5d} : {name}\n'
                    for number, name in self.types.items()
                    if self._fits(number, there))
            path.write_text(lists[card])

    def _write(self, path, text):
        path = pathlib.Path(path)
        if path.name != 'current_vgpu_type' or not path.is_relative_to(
                self._vfs):
            return self._others(path, text)
        vf, number = path.parts[-3], int(text)
        self.writes.append((vf, number))
        self.on_write(vf, number)
        current = int(path.read_text())
        if vf in self.open:
            raise _error(errno.EBUSY)
        if bool(number) == bool(current):
            raise _error(errno.EPERM)
        if number and not self._fits(number, self._there(self._card(vf))):
            raise _error(errno.EIO)
        self.set(vf, number)

    def _there(self, card):
        """Return the names of the types of a card's VFs."""
        return [self.types.get(number, '')
                for vf, number in self.current().items()
                if self._card(vf) == card]

    def _fits(self, number, there):
        if number not in self.types:
            return False
        name = self.types[number]
        if self.mode not in (EQUAL, MIXED):
            size = _instance(name)
            return [_instance(other) for other in there].count(
                size) < self.mode.get(size, 0)
        if '-' in _instance(name):
            return False
        sizes = [_size(other) for other in (*there, name)]
        return sum(sizes) <= MEMORY and (
            self.mode == MIXED or len(set(sizes)) == 1)

    def _card(self, vf):
        return (self._vfs / vf / 'physfn').resolve()


def _parse(text):
    return {int(number): name for number, name in re.findall(
        r'^(\d+) *: (.*)$', text, re.MULTILINE)}


def _instance(name):
    """Return the GPU instance of a type: 1-10 for NVIDIA H100-1-10C."""
    return re.search(r'(?:-(\d+))?-\d+[A-Z]$|$', name)[0][1:-1]


def _size(name):
    """Return the frame buffer of a type in GB: 16 for NVIDIA L40S-16Q."""
    return int(name[:-1].rpartition('-')[2] or 0)


def _error(number):
    return OSError(number, os.strerror(number))
