# SPDX-License-Identifier: Apache-2.0
"""The contract of a kind: how to find its units and how to prepare them.

An entry point of :data:`NAMESPACE` names a :class:`Kind`. Its ``open`` returns
an :class:`Enumerator` of the machine. The Enumerator is a :class:`Preparer` as
well if units need work before a guest gets one and after a guest had one.

A kind decides which units exist. Whether a unit may be offered is checked for
all kinds in :mod:`nova_accel.core.device_spec.discovery`: no other program
claims it, the host does not use it, and its IOMMU group stays together.
"""

import abc
import collections.abc
import dataclasses
import re
import typing

from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core.placement import inventory
from nova_accel.core.request import fpga

#: The entry points that name kinds.
NAMESPACE = 'nova_accel.kinds'

#: The default kind: whole PCI functions.
PCI = 'pci'

#: A key that kinds share: the maximum of units per card, for cards whose
#: driver does not report it.
LIMIT = 'max_instances'

#: Reads the value of a key in an entry and returns it in hashable form.
#: Raises ValueError with the reason ("is not a number").
Reader = collections.abc.Callable[[object], collections.abc.Hashable]


def read_limit(value: object) -> int:
    """The :data:`Reader` of :data:`LIMIT`."""
    text = str(value).strip()
    if not re.fullmatch(r'[0-9]{1,9}', text) or not int(text):
        raise ValueError('is not a number of instances')
    return int(text)


class Refused(Exception):
    """Raised when a device that an entry names cannot be offered.

    :param reason: what prevents it
    :param remedy: what an operator can do about it, or ''
    :param because_of: the function that is the cause, None for the unit as a
        whole
    :ivar states: those of a unit that is offered again once they are over
    """

    states: tuple[model.WithheldState, ...] = ()

    def __init__(self, reason: str, remedy: str = '',
                 because_of: model.Address | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy
        self.because_of = because_of

    def reason_for(self, function: model.Function) -> str:
        """Return the reason, with the cause if that is another function."""
        if self.because_of in (None, function.address):
            return self.reason
        place = (', its physical function'
                 if self.because_of == function.physfn
                 else ' in its IOMMU group')
        return f'{self.because_of}{place}: {self.reason}'


@dataclasses.dataclass(frozen=True, slots=True)
class Pool:
    """Interchangeable units of a card that guests can get.

    Pools of a card that are equal except for their units form one Region.

    :param units: a unit is one function, or several that a guest can only
        get together; for mdevs, the parent, once for each mdev that exists or
        can be created
    :param variant: which of several things the card can be, such as the name
        of a type
    :param traits: added to those of the entry
    :param resource_class: used if the entry has none
    :param limit: how many of the units can be in use at the same time, None
        for all
    :param managed: whether libvirt binds and unbinds the driver; used if the
        entry does not say
    :param mdevs: whether units are mdevs, of the type ``variant``
    :param resets: whether nova_accel resets units before another server gets
        them, and checks that they have a vfio driver if libvirt does not
        bind it. False if the kind prepares and resets units itself
    :param instances: for mdevs, those of ours that exist
    :param programmed: whether vendor and product id of a unit can change,
        because they depend on what is programmed into it
    :param needs_driver: whether a driver of the host prepares units, and has
        to be bound again after a reset
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
    """What a server requires of one device, besides its class.

    :param bitstream: the bitstream to program into the device
    :param traits: the traits that the device must have
    :param project: id of the server's project, '' if it is not known
    """

    bitstream: fpga.Bitstream | None = None
    traits: frozenset[str] = frozenset()
    project: str = ''


class Entry(typing.Protocol):
    """The part of an entry that a kind may use.

    The object is a :class:`nova_accel.core.device_spec.spec_entry.Entry`.
    """

    @property
    def managed(self) -> bool | None:
        """Whether libvirt binds the driver, None if the entry does not say."""

    def setting(self, key: str) -> typing.Any:
        """Return the value of one of the kind's keys, None if absent."""


class Machine(typing.Protocol):
    """All functions of the machine, and the entries that name them."""

    @property
    def functions(self) -> model.Functions:
        """All functions."""

    @property
    def named(self) -> collections.abc.Mapping[
            model.Address, collections.abc.Sequence[Entry]]:
        """By function, the entries that are used for it.

        All entries of a function are of the same kind.
        """

    def bundle(self, function: model.Function) -> model.Unit:
        """Return the functions that can only be assigned together with one.

        They are its IOMMU group, with the function itself and without the
        bridges that vfio ignores.
        """


class Tree(typing.Protocol):
    """The files of a machine, live or recorded.

    Paths are relative to its root, such as ``sys/bus/pci/devices``. No method
    raises: entries that disappear, loops and unreadable files are common in
    sysfs, and are treated as missing.
    """

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""

    def text(self, path: str) -> str | None:
        """Return a file's content, or None if it cannot be read.

        At most :data:`nova_accel.host.tree.MAX_FILE` bytes, in proc
        :data:`nova_accel.host.tree.MAX_PROC`.
        """

    def link(self, path: str) -> str | None:
        """Return the target of a symbolic link as written, or None."""

    def has(self, path: str) -> bool:
        """Whether a path exists, even if the file cannot be read."""


class Enumerator(typing.Protocol):
    """Finds the units of a function."""

    @abc.abstractmethod
    def pools(self, function: model.Function, entry: Entry,
              machine: Machine) -> collections.abc.Iterable[Pool]:
        """Return the Pools of a function that an entry of this kind names.

        It can be called for several functions of a card and return the same
        Pools: equal Pools count once. nova-compute calls it in each periodic
        update, so it must not block. A Pool without units makes a Region
        without inventory.

        :raises Refused: if the function has no units; an iterator may raise
            it after a Pool without units
        """


@typing.runtime_checkable
class Suggester(typing.Protocol):
    """An Enumerator that suggests entries."""

    @abc.abstractmethod
    def suggest(self, function: model.Function,
                ) -> collections.abc.Iterable[
                    collections.abc.Mapping[str, typing.Any]]:
        """Return keys and values, as in JSON, for entries of a function.

        The best comes first. Nothing is returned for a function of another
        kind. Each suggestion is tried before an operator sees it.
        """


@typing.runtime_checkable
class Preparer(typing.Protocol):
    """Prepares units for guests, and releases them afterwards."""

    @abc.abstractmethod
    def prepare(self, device: hostdev.Hostdev, item: inventory.Offered,
                config: DeviceConfig) -> None:
        """Prepare a unit for a guest that is about to start with it.

        The unit can be prepared already, wholly or in part, by an earlier
        attempt.

        :param device: the hostdev of the guest
        :param item: the Region of the unit
        :param config: what the server requires of the device
        :raises nova_accel.core.errors.AccelError: if it fails; the server
            does not start then
        """

    @abc.abstractmethod
    def prepared(self, host: model.Host,
                 ) -> collections.abc.Collection[model.Address]:
        """Return all prepared units, whether a server holds them or not."""

    @abc.abstractmethod
    def release(self, address: model.Address) -> None:
        """Undo the preparation of a unit that no server holds.

        :raises OSError, nova_accel.core.errors.AccelError: if it fails; it is
            logged once and tried again later
        """


@typing.runtime_checkable
class Inspector(typing.Protocol):
    """A Preparer that recognises its units without their entry.

    Such units are released after a server even if no entry in nova.conf names
    them any more, and no server starts with a unit that cannot be prepared.
    Without an Inspector, only the units that ``prepared`` returns are
    released.
    """

    @abc.abstractmethod
    def is_ready(self, address: model.Address) -> bool | None:
        """Whether a unit is ready for a guest; None if of another kind."""


@typing.runtime_checkable
class Programmer(typing.Protocol):
    """A Preparer that knows what it has programmed."""

    @abc.abstractmethod
    def is_programmed(self, device: hostdev.Hostdev, item: inventory.Offered,
                      image: str, project: str) -> bool:
        """Whether a unit certainly has a bitstream already.

        Then nothing is fetched for it, and ``prepare`` is not called.

        :param image: uuid of the bitstream's image
        :param project: of the server; no other project's servers have had the
            unit since it was programmed
        """

    @abc.abstractmethod
    def forget(self, item: inventory.Offered) -> None:
        """Forget what was programmed: something else may have changed it."""


@typing.runtime_checkable
class Examiner(typing.Protocol):
    """An Enumerator that also tells whether functions are healthy."""

    @abc.abstractmethod
    def examine(self, function: model.Function,
                ) -> collections.abc.Iterable[str]:
        """Return what is wrong with a function ("its driver has lost it").

        nova-compute calls it in each periodic update, for each function of
        devices. A function with problems gets no new server. Texts must not
        contain numbers that change all the time: each new text is logged.
        Nothing is returned for a function of another kind.
        """


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind: the object that an entry point names.

    :param open: called with the Tree of a machine; returns an Enumerator of it
    :param keys: Readers of the keys that only entries of this kind can have;
        an entry with one of them is of this kind
    :param naming: those of ``keys`` that name devices, such as a file that
        lists them; an entry needs no ids or address beside one of them
    :param several: whether several entries can name a function, each for
        another thing that it can be, such as another type; if False, the
        first entry is used
    :param live_migratable: whether the state of a unit can move to another
        host; used if the entry does not say
    :param files: the files that it reads of a function, relative to the
        function's directory in sysfs; recordings of machines include them
    :param programs: whether ``prepare`` programs a bitstream; a server with a
        bitstream does not start with a device of another kind
    """

    open: collections.abc.Callable[[Tree], Enumerator]
    keys: collections.abc.Mapping[str, Reader] = dataclasses.field(
        default_factory=dict)
    naming: tuple[str, ...] = ()
    several: bool = False
    live_migratable: bool = False
    files: tuple[str, ...] = ()
    programs: bool = False
