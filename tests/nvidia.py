# SPDX-License-Identifier: Apache-2.0
"""A simulation of NVIDIA's vGPU manager, the vendor-specific VFIO framework.

The simulation, tests/data/hosts/l40s-modelled.json and :func:`blackwell`
follow publications of NVIDIA and its users. They were not compared with
hardware. The file has two L40S, one on each NUMA node, with 8 VFs each and
some of their types. The sources are:

- the Virtual GPU Software User Guide: the files and the modes of a card;
- open-gpu-kernel-modules 595.45, kernel_vgpu_mgr.c: which types a VF lists,
  and which GPU instance a vGPU gets: the first with vGPUs of its size only
  that is not full, or an empty one. All VFs without a type list the same;
- nvidia-vgpu-vfio in the driver's package: the format of the lists, and EPERM
  if a type is set over another or 0 is set twice;
- the series "NVIDIA vGPU VFIO" on the kernel's mailing lists: EBUSY while a
  guest has the VF;
- reports of users: EIO if the card has no room, lists that shrink to their
  header as the card fills up, empty lists in MIG mode without GPU instances,
  48 vGPUs in four GPU instances of an RTX PRO 6000, and ``gpu_instance_id``
  and ``placement_id`` that can be read only while the VF has a type.

Placements are multiples of the size of the type. The real ones are not
published for all cards.
"""

import errno
import itertools
import os
import pathlib
import re

import fixtures

from nova_accel.host import operations
from tests.unit import build

#: All vGPUs of a card, or of a GPU instance, have frame buffers of the same
#: size. The default mode.
EQUAL = 'equal'
#: Their sizes may differ (nvidia-smi vgpu -shm 1).
MIXED = 'mixed'

_CURRENT = 'nvidia/current_vgpu_type'
_CREATABLE = 'nvidia/creatable_vgpu_types'
_INSTANCE = 'nvidia/gpu_instance_id'
_PLACEMENT = 'nvidia/placement_id'

HEADER = 'ID    : vGPU Name\n'

#: Some types of an RTX PRO 6000, which has 96 GB. In MIG mode, it has four GPU
#: instances of one slice and 24 GB, or half as many of twice the size.
BLACKWELL = {
    number: f'NVIDIA RTX Pro 6000 Blackwell DC-{name}' for number, name in {
        1519: '3Q', 1520: '3A', 1540: '48Q', 1546: '1-2Q', 1549: '1-3Q',
        1553: '1-6Q', 1561: '1-24Q', 1573: '2-48Q'}.items()}


def blackwell(vfs=48):
    """Return a recording of a host with an RTX PRO 6000."""
    pf = '0001:c8:00.0'
    card = {'device': '0x2bb5\n', 'driver': '../../../bus/pci/drivers/nvidia'}
    at = {f'pci0001:c0/{pf}': {**card, 'sriov_totalvfs': '48\n',
                               'sriov_numvfs': f'{vfs}\n'}}
    files = {}
    for number in range(2, vfs + 2):
        vf = f'pci0001:c0/0001:c8:{number // 8:02x}.{number % 8}'
        at[vf] = {**card, 'physfn': f'../{pf}'}
        files[f'sys/devices/{vf}/{_CURRENT}'] = '0\n'
        files[f'sys/devices/{vf}/{_CREATABLE}'] = _text(BLACKWELL)
    return build.sysfs(at, files)


class VgpuManager(fixtures.Fixture):
    """Simulates how the driver handles types that are written to VFs.

    :param machine: the directory that contains ``sys``
    :param mode: EQUAL or MIXED
    :param instances: in MIG mode, the number of GPU instances of each card by
        slices and memory in GB, for example {'1-24': 4}; otherwise None
    :param memory: of each card in GB; an L40S has 48
    """

    def __init__(self, machine, mode=EQUAL, instances=None, memory=48):
        self._vfs = pathlib.Path(machine).resolve() / 'sys/bus/pci/devices'
        self.mode = mode
        self.instances = instances
        self.memory = memory
        #: All writes in order: (VF, number).
        self.writes = []
        #: VFs that a guest has open.
        self.open = set()
        #: Called before each write. The write fails with its exception.
        self.on_write = lambda vf, number: None

    def _setUp(self):
        self.types = _parse(next(self._vfs.glob(
            f'*/{_CREATABLE}')).read_text())
        self._others = operations.write
        self.useFixture(fixtures.MonkeyPatch(
            'nova_accel.host.operations.write', self._write))
        self.list()

    def current(self):
        """Return the types that are set, by VF."""
        return {path.parts[-3]: number for path in sorted(
            self._vfs.glob(f'*/{_CURRENT}'))
            if (number := int(path.read_text()))}

    def instances_in_use(self):
        """Return the types that each GPU instance has, by its id."""
        found = {}
        for vf, number in self.current().items():
            found.setdefault(self._read(vf, _INSTANCE), []).append(number)
        return found

    def possible(self, vf):
        """Return the vGPUs that the card of a VF has and that fit, by type."""
        found = {}
        for number in self.types:
            vgpus = self._vgpus(self._card(vf))
            while place := self._place(number, vgpus):
                vgpus.append((number, *place))
            found[number] = [there for there, *_place in vgpus].count(number)
        return found

    def reboot(self):
        """Reset all VFs, as types do not survive a reload of the driver."""
        self.open.clear()
        for vf in self.current():
            self.set(vf, 0)

    def set(self, vf, number):
        """Set a type, as an administrator would."""
        place = self._place(number, self._vgpus(self._card(vf)))
        for name, value in zip((_INSTANCE, _PLACEMENT), place or (None, None),
                               strict=True):
            if value is None:
                (self._vfs / vf / name).unlink(missing_ok=True)
            else:
                (self._vfs / vf / name).write_text(f'{value}\n')
        (self._vfs / vf / _CURRENT).write_text(f'{number}\n')
        self.list()

    def list(self):
        """Update the lists of types that fit on each card."""
        lists = {}
        current = self.current()
        for path in self._vfs.glob(f'*/{_CREATABLE}'):
            vf = path.parts[-3]
            card = self._card(vf)
            if card not in lists:
                vgpus = self._vgpus(card)
                lists[card] = {number: name
                               for number, name in self.types.items()
                               if self._place(number, vgpus)}
            path.write_text(_text({} if vf in current else lists[card]))

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
        if number and not self._place(number, self._vgpus(self._card(vf))):
            raise _error(errno.EIO)
        self.set(vf, number)

    def _vgpus(self, card):
        """Return the vGPUs of a card: number, GPU instance, placement."""
        return [(number, self._read(vf, _INSTANCE),
                 self._read(vf, _PLACEMENT))
                for vf, number in self.current().items()
                if self._card(vf) == card]

    def _place(self, number, vgpus):
        """Return where a vGPU would be, None if it does not fit.

        :param vgpus: those that the card has already
        :returns: id of the GPU instance (None if not in MIG mode), placement
        """
        name = self.types.get(number)
        if name is None:
            return None
        size = _size(name)
        for instance, slices, memory in self._rooms():
            others = [(_size(self.types.get(other, '-0Q')), start)
                      for other, where, start in vgpus if where == instance]
            if slices != _slices(name) or self.mode == EQUAL and any(
                    other != size for other, _start in others):
                continue
            for start in range(0, memory - size + 1, size):
                if all(start >= there + other or there >= start + size
                       for other, there in others if there is not None):
                    return instance, start
        return None

    def _rooms(self):
        """Yield where vGPUs can be: id, slices, and memory in GB."""
        if self.instances is None:
            yield None, '', self.memory
            return
        # The ids of a card with four GPU instances.
        ids = itertools.count(3)
        for room, count in self.instances.items():
            slices, memory = room.split('-')
            for _number in range(count):
                yield next(ids), slices, int(memory)

    def _read(self, vf, name):
        path = self._vfs / vf / name
        return int(path.read_text()) if path.exists() else None

    def _card(self, vf):
        return (self._vfs / vf / 'physfn').resolve()


def _parse(text):
    return {int(number): name for number, name in re.findall(
        r'^(\d+) *: (.*)$', text, re.MULTILINE)}


def _text(types):
    return HEADER + ''.join(f'{number:<5d} : {name}\n'
                            for number, name in types.items())


def _slices(name):
    """Return the slices of a GPU instance: 1 for NVIDIA H100-1-10C."""
    found = re.search(r'-(\d+)-\d+[A-Z]$', name)
    return found[1] if found else ''


def _size(name):
    """Return the frame buffer of a type in GB: 16 for NVIDIA L40S-16Q."""
    return int(name[:-1].rpartition('-')[2])


def _error(number):
    return OSError(number, os.strerror(number))
