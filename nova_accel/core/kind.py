# SPDX-License-Identifier: Apache-2.0
"""The contract of a kind: what there is of it, and what is done with it.

An entry point of :data:`NAMESPACE` names a :class:`Kind`. What that opens on a
machine is an :class:`Enumerator`; and a :class:`Preparer` as well, where
something has to be done before a guest can have a unit and after it had one.

A kind decides what can be given away, and the rest of us whether it may: that
nobody else claims or uses it, and that no IOMMU group is torn apart, is
checked for every kind in :mod:`nova_accel.core.device_spec.discovery`.
"""

import collections.abc
import dataclasses
import re
import typing

from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core.placement import inventory
from nova_accel.core.request import fpga

#: Of entry points, by which kinds are found.
NAMESPACE = 'nova_accel.kinds'

#: The kind of an entry that names no other: PCI functions as they are.
PCI = 'pci'

#: How many units of an entry's a card can have, where its driver does not
#: say; a key that kinds share.
LIMIT = 'max_instances'

#: Reads a key's value in an entry; what it returns is hashable.
#: Raises ValueError, saying what is wrong ("is not a number").
Reader = collections.abc.Callable[[typing.Any], collections.abc.Hashable]


def read_limit(value: typing.Any) -> int:
    """The :data:`Reader` of :data:`LIMIT`."""
    text = str(value).strip()
    if not re.fullmatch(r'[0-9]{1,9}', text) or not int(text):
        raise ValueError('is not a number of instances')
    return int(text)


class Refused(Exception):
    """Why something that an entry names is not given away.

    :param because_of: the function that is the cause, or None for all
    """

    def __init__(self, reason: str, remedy: str = '',
                 because_of: model.PciAddress | None = None):
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy
        self.because_of = because_of

    def reason_for(self, function: model.Function) -> str:
        if self.because_of in (None, function.address):
            return self.reason
        return f'{self.because_of} in its IOMMU group: {self.reason}'


@dataclasses.dataclass(frozen=True, slots=True)
class Pool:
    """Like units of a card that a guest can have, any of them as well.

    Pools of a card that agree in everything but their units are one Region.

    :param units: a unit is one function, or several that a guest can only
        have together; of mdevs, their parent, for each that there is or
        could be
    :param variant: tells it from what else the card could be: a type's name
    :param traits: beside those of the entry
    :param resource_class: unless the entry has one
    :param limit: how many of the units can be had at the same time, if not
        all
    :param managed: unless the entry decides, whether libvirt binds and
        unbinds the driver
    :param mdevs: units are mdevs, and the variant is their type
    :param resets: units are functions as they are: without libvirt's help
        they need a driver of vfio's, and they are reset before somebody else
        has them. What a kind makes ready itself, it resets itself
    :param instances: of units that are mdevs, those of ours that there are
    :param programmed: what units are depends on what is programmed into them:
        another time they can have other vendor and product ids
    :param needs_driver: a driver of the host's makes units ready, and gets
        them again after a reset
    """

    units: tuple[model.Unit, ...]
    variant: str = ''
    traits: frozenset[str] = frozenset()
    resource_class: str = ''
    limit: int | None = None
    managed: bool | None = None
    mdevs: bool = False
    resets: bool = True
    instances: frozenset[model.MdevAddress] = frozenset()
    programmed: bool = False
    needs_driver: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceConfig:
    """What a server asks of one of its devices, beside its class.

    :param bitstream: the bitstream to program into the device
    :param traits: the traits that the device must have
    """

    bitstream: fpga.Bitstream | None = None
    traits: frozenset[str] = frozenset()


class Entry(typing.Protocol):
    """What a kind sees of an entry.

    It is a :class:`nova_accel.core.device_spec.spec_entry.Entry`.

    :ivar managed: whether libvirt is to bind and unbind the driver, None
        where it does not say
    """

    managed: bool | None

    def setting(self, key: str) -> typing.Any:
        """The value of one of the kind's own keys, None where it is not."""


class Machine(typing.Protocol):
    """What there is beside a function.

    :ivar functions: all of them
    :ivar named: the entries that count, by the function that they name; of
        one function they are all of the same kind
    """

    functions: collections.abc.Mapping[model.PciAddress, model.Function]
    named: collections.abc.Mapping[model.PciAddress,
                                   collections.abc.Sequence[Entry]]

    def bundle(self, function: model.Function) -> model.Unit:
        """The functions that can only travel together, this one among them.

        Those of its IOMMU group but for bridges that vfio leaves alone.
        """


class Enumerator(typing.Protocol):
    """Says what of a function can be given away."""

    def pools(self, function: model.Function, entry: Entry,
              machine: Machine) -> collections.abc.Iterable[Pool]:
        """What there is of a function that an entry of this kind names.

        It may be called for another function of the same card with the same
        answer: what is there twice counts once. Called at each round of
        nova-compute, so it reads and does not wait. A Pool without units
        makes a Region that has nothing at the moment.

        :raises Refused: if nothing is; also after a Pool without units
        """


@typing.runtime_checkable
class Suggester(typing.Protocol):
    """An Enumerator that can tell what an entry could say."""

    def suggest(self, function: model.Function,
                ) -> collections.abc.Iterable[
                    collections.abc.Mapping[str, typing.Any]]:
        """Keys and values, as in JSON, for an entry that names a function.

        The best first; nothing if the function is of another kind. Each is
        tried before an operator sees it.
        """


@typing.runtime_checkable
class Preparer(typing.Protocol):
    """Makes units ready for guests, and takes them back."""

    def prepare(self, device: hostdev.Hostdev, item: inventory.Offered,
                config: DeviceConfig) -> None:
        """Make a unit ready for the guest that is about to start with it.

        It may be ready already: another try comes after whatever became of
        the first.

        :param device: what the guest is going to have
        :param item: the Region that it is of
        :param config: what the server asks of the device
        :raises nova_accel.core.errors.AccelError: if that cannot be done; the
            server does not start
        """

    def prepared(self, host: model.Host,
                 ) -> collections.abc.Collection[model.Address]:
        """What has been made ready, whoever has it or has it not."""

    def release(self, address: model.Address) -> None:
        """Take back what nobody has.

        :raises OSError, nova_accel.core.errors.AccelError: if that cannot be
            done; it is tried again, and said once
        """


@typing.runtime_checkable
class Inspector(typing.Protocol):
    """A Preparer that knows its units without the entry that named them.

    With it, what a server was given is taken back after it though nothing in
    nova.conf names it any more, and no server starts with what cannot be made
    ready. A Preparer without it takes back what its ``prepared`` says.
    """

    def is_ready(self, address: model.Address) -> bool | None:
        """Whether a unit is ready for a guest; None if it is of no such kind.
        """


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind, as an entry point names it.

    :param open: from the tree of a machine (:class:`nova_accel.host.tree
        .Tree`) to an Enumerator of it
    :param keys: what an entry of this kind can say beside what every entry
        can; an entry with one of them is of this kind
    :param several: whether several entries can name a function, each for
        something else that it could be; if not, the first one counts
    :param live_migratable: whether the state of a unit can move to another
        host where the entry does not say
    :param files: what it reads of a function, relative to the function's
        directory in sysfs: a recording of a machine has to have it
    :param programs: whether ``prepare`` programs a bitstream; a server that
        asks for one does not start with a device of another kind
    """

    open: collections.abc.Callable[[typing.Any], Enumerator]
    keys: collections.abc.Mapping[str, Reader] = dataclasses.field(
        default_factory=dict)
    several: bool = False
    live_migratable: bool = False
    files: tuple[str, ...] = ()
    programs: bool = False
