# SPDX-License-Identifier: Apache-2.0
"""A model of the kernel's function resets and SR-IOV support.

The model follows Documentation/ABI/testing/sysfs-bus-pci.
"""

import pathlib
import shutil

import fixtures

from nova_accel.core import model
from nova_accel.host import operations

#: Offset of the first VF's routing id from the routing id of its card, if the
#: recording has no VF.
VF_OFFSET = 8


class Functions(fixtures.Fixture):
    """A kernel that resets functions, and creates and removes VFs.

    It passes all other writes to sysfs on to the previous function.

    :param machine: directory with the files of a recording
    """

    def __init__(self, machine):
        self._bus = pathlib.Path(machine) / 'sys/bus/pci/devices'
        # A recorded VF of each card, by the card's path.
        self._examples = {}
        #: Functions that were reset, in order.
        self.resets = []
        #: Number of attempts to reset a function.
        self.tries = 0
        #: Functions whose reset fails.
        self.broken = set()
        #: Number of VFs that a card has resources for.
        self.room = 256
        #: Whether the driver creates either all VFs of a card or none.
        self.all_or_none = False
        #: Called with a function before it is reset.
        self.on_reset = lambda address: None
        #: Called with a function before it is unbound from its driver.
        self.on_unbind = lambda address: None

    def _setUp(self):
        before = operations.write
        answers = {'reset': self._reset, 'sriov_numvfs': self._set_vfs,
                   'unbind': self._unbind,
                   'reset_method': lambda path, text: pathlib.Path(
                       path).write_text(f'{text}\n')}
        self.useFixture(fixtures.MonkeyPatch(
            'nova_accel.host.operations.write', lambda path, text: (
                answers.get(pathlib.Path(path).name, before)
                if pathlib.Path(path).is_relative_to(self._bus) else before
            )(path, text)))
        self._keep_examples()
        for path in self._bus.glob('*/sriov_totalvfs'):
            path.with_name('sriov_offset').write_text(
                f'{self._offset(path.parent.resolve())}\n')
            path.with_name('sriov_stride').write_text('1\n')

    def _keep_examples(self):
        kept = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        for link in sorted(self._bus.glob('*/physfn')):
            card = link.resolve()
            if card not in self._examples:
                self._examples[card] = kept / link.parent.name
                shutil.copytree(link.parent, self._examples[card],
                                symlinks=True)

    def _offset(self, card):
        """Return the offset of a card's first VF, as a routing id."""
        example = self._examples.get(card)
        return (_routing(example.name) - _routing(card.name) if example
                else VF_OFFSET)

    def _vf(self, card, index):
        """Return the address of a card's VF."""
        at = model.PciAddress.parse(card.name)
        number = _routing(card.name) + self._offset(card) + index
        return str(model.PciAddress(at.domain, at.bus, number // 8,
                                    number % 8))

    def reboot(self):
        """Remove all VFs and their mdevs, as a reboot of the host does."""
        for path in self._bus.glob('*/sriov_numvfs'):
            self._set_vfs(path, '0')

    def place(self, address):
        return (self._bus / address).resolve()

    def offer_reset(self, *addresses, methods='flr pm\n'):
        """Set the reset methods of functions; None removes them."""
        for address in addresses:
            place = self.place(address)
            (place / 'config').write_text('')
            for name in ('reset', 'reset_method'):
                (place / name).unlink(missing_ok=True)
                if methods:
                    (place / name).write_text(methods)

    def set_num_vfs(self, card, number):
        """Do what the host's administrator does by hand."""
        self._set_vfs(self.place(card) / 'sriov_numvfs', str(number))

    def bind(self, address, driver):
        link = self.place(address) / 'driver'
        link.unlink(missing_ok=True)
        link.symlink_to(f'../../../../bus/pci/drivers/{driver}')

    def driver(self, address):
        link = self.place(address) / 'driver'
        return link.readlink().name if link.is_symlink() else None

    def _reset(self, path, text):
        assert text == '1'
        place = pathlib.Path(path).parent
        if not (place / 'reset').exists():
            raise FileNotFoundError(2, 'No such file or directory')
        address = place.name
        self.tries += 1
        self.on_reset(address)
        if address in self.broken:
            raise OSError(25, 'Inappropriate ioctl for device')
        self.resets.append(address)

    def _unbind(self, path, text):
        assert pathlib.Path(path).parent.parent.name == text
        self.on_unbind(text)
        (self.place(text) / 'driver').unlink()

    def _set_vfs(self, path, text):
        card = pathlib.Path(path).parent.resolve()
        number, now = int(text), int(
            (card / 'sriov_numvfs').read_text())
        if number and now and number != now:
            raise OSError(16, 'Device or resource busy')
        if number > int((card / 'sriov_totalvfs').read_text()):
            raise OSError(34, 'Numerical result out of range')
        if number > self.room:
            raise OSError(12, 'Cannot allocate memory')
        if number and self.all_or_none:
            number = int((card / 'sriov_totalvfs').read_text())
        for index in range(now if not number else 0):
            self._remove(self._vf(card, index))
        for index in range(number if not now else 0):
            self._make(card, self._vf(card, index))
        (card / 'sriov_numvfs').write_text(f'{number}\n')

    def _remove(self, name):
        for mdev in self._bus.parents[1].glob('mdev/devices/*'):
            if mdev.resolve().is_relative_to(self.place(name)):
                mdev.unlink()
        shutil.rmtree(self.place(name))
        (self._bus / name).unlink()

    def _make(self, card, name):
        place = card.with_name(name)
        if card in self._examples:
            shutil.copytree(self._examples[card], place, symlinks=True)
            (place / 'iommu_group').unlink()
        else:
            self._make_plain(card, place)
        (place / 'iommu_group').symlink_to(
            f'../../../../kernel/iommu_groups/{name}')
        link = (self._bus / card.name).readlink()
        (self._bus / name).symlink_to(link.with_name(name))
        self.offer_reset(name)

    @staticmethod
    def _make_plain(card, place):
        place.mkdir()
        for attribute in ('vendor', 'class', 'revision', 'numa_node',
                          'subsystem_vendor', 'subsystem_device'):
            shutil.copy(card / attribute, place)
        product = int((card / 'device').read_text(), 16)
        (place / 'device').write_text(f'{product + 1:#06x}\n')
        (place / 'physfn').symlink_to(f'../{card.name}')


def _routing(name):
    """Return the device and function number of an address as one number."""
    at = model.PciAddress.parse(name)
    return at.slot * 8 + at.function
