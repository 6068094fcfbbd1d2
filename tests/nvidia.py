# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's vGPU manager, as its vendor-specific VFIO framework shows itself.

Modelled, as is tests/data/hosts/l40s-modelled.json (two L40S, one on each NUMA
node, with 8 VFs each and some of their types), from what NVIDIA and users of
it have published; neither was seen on hardware:

- the Virtual GPU Software User Guide, for the files and the modes of a card;
- nvidia-vgpu-vfio in the driver's package, for the format of the lists, and
  EPERM for a type over another and for a second 0;
- the series "NVIDIA vGPU VFIO" on the kernel's mailing lists, for EBUSY where
  a guest has the VF;
- reports of users, for EIO where the card has no room, for lists that shrink
  to their header as it fills up, and that are empty in MIG mode without GPU
  instances.

Which placements are left on a card of several sizes is not modelled: what
fits into its memory, fits.
"""

import errno
import os
import pathlib
import re

import fixtures

from nova_accel.host import operations

#: All vGPUs of a card have frame buffers of the same size, as it is at first.
EQUAL = 'equal'
#: They may have any (nvidia-smi vgpu -shm 1).
MIXED = 'mixed'

#: GB of an L40S.
MEMORY = 48

HEADER = 'ID    : vGPU Name\n'


class VgpuManager(fixtures.Fixture):
    """What the driver does when types are written to VFs.

    :param machine: the directory that has ``sys``
    :param mode: EQUAL or MIXED; or, for cards in MIG mode, how many GPU
        instances there are of each size, {'1-6': 2}
    """

    def __init__(self, machine, mode=EQUAL):
        self._vfs = pathlib.Path(machine).resolve() / 'sys/bus/pci/devices'
        self.mode = mode
        #: What was written, in order: (VF, number).
        self.writes = []
        #: VFs that a guest has open.
        self.open = set()
        #: Called before each write; what it raises, the driver says.
        self.on_write = lambda vf, number: None

    def _setUp(self):
        self.types = _parse(next(self._vfs.glob(
            '*/nvidia/creatable_vgpu_types')).read_text())
        self._others = operations.write
        self.useFixture(fixtures.MonkeyPatch(
            'nova_accel.host.operations.write', self._write))
        self.list()

    def current(self):
        """The types that are set, by VF."""
        return {path.parts[-3]: number for path in sorted(
            self._vfs.glob('*/nvidia/current_vgpu_type'))
            if (number := int(path.read_text()))}

    def reboot(self):
        """Types do not outlive the driver."""
        self.open.clear()
        for vf in self.current():
            self.set(vf, 0)

    def set(self, vf, number):
        """Set a type as root would."""
        (self._vfs / vf / 'nvidia/current_vgpu_type').write_text(
            f'{number}\n')
        self.list()

    def list(self):
        """List what there is room for."""
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
        """The names of the types that a card's VFs have."""
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
    """``1-10``, the GPU instance that ``NVIDIA H100-1-10C`` needs."""
    return re.search(r'(?:-(\d+))?-\d+[A-Z]$|$', name)[0][1:-1]


def _size(name):
    """GB of frame buffer: 16 of ``NVIDIA L40S-16Q``."""
    return int(name[:-1].rpartition('-')[2] or 0)


def _error(number):
    return OSError(number, os.strerror(number))
