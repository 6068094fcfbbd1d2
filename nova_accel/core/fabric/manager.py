# SPDX-License-Identifier: Apache-2.0
"""The contract of a fabric manager: partitions of cards behind switches.

An entry point of :data:`NAMESPACE` names a :class:`FabricManager`. Its
``open`` returns the :class:`Fabric` of the machine. The guest of a server can
use the links between its cards only while their partition is active.

Source: NVIDIA, Fabric Manager User Guide, "Shared NVSwitch Virtualization
Model" and "Fabric Manager SDK".
"""

import abc
import collections.abc
import dataclasses
import enum
import typing

from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core.device_spec import command_option

#: The entry points that name fabric managers.
NAMESPACE = 'nova_accel.fabric_managers'


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """A card of a partition.

    :param module: the number of its place on the baseboard, which NVIDIA
        calls physical id, or module id
    :param address: its PCI address, None if the manager does not tell it, as
        on HGX H100 and later
    :param links: how many of its links can be used, None if not known
    :param max_links: how many that are when all are well, None if not known
    """

    module: int
    address: model.PciAddress | None = None
    links: int | None = None
    max_links: int | None = None

    @property
    def has_failed_links(self) -> bool:
        """Whether it has fewer links than it should have."""
        return (self.links is not None and self.max_links is not None
                and self.links < self.max_links)


@dataclasses.dataclass(frozen=True, slots=True)
class Partition:
    """Cards that can be used together only as a whole.

    :param id: the manager's number
    :param members: in the manager's order, which is the order of the virtual
        functions with which it is activated
    :param is_active: whether its links are usable, and no other card's
    """

    id: int
    members: tuple[Member, ...]
    is_active: bool = False

    @property
    def modules(self) -> frozenset[int]:
        return frozenset(member.module for member in self.members)


@dataclasses.dataclass(frozen=True, slots=True)
class FailedLinks:
    """A card or a switch with links that have failed.

    :param address: its PCI address, None if the manager does not tell it
    :param uuid: the vendor's name of it, '' if the manager does not tell it
    :param ports: the numbers of its failed links
    :param is_switch: False for a card
    """

    address: model.PciAddress | None
    uuid: str
    ports: tuple[int, ...]
    is_switch: bool = False


class Failure(enum.Enum):
    """Why a manager did not do what it was asked for."""

    #: It does not run, or does not answer.
    UNREACHABLE = enum.auto()
    #: It is starting, or was restarted and waits for :meth:`Fabric.restore`.
    NOT_READY = enum.auto()
    #: It took too long. Whether it was done is not known.
    TIMED_OUT = enum.auto()
    #: The partition, or one that shares a card with it, is active already.
    IN_USE = enum.auto()
    #: The partition is not active.
    NOT_ACTIVE = enum.auto()
    #: There is no such partition.
    UNKNOWN_PARTITION = enum.auto()
    #: This manager cannot do it, or not as it is configured.
    NOT_SUPPORTED = enum.auto()
    #: A link has failed.
    LINK_ERROR = enum.auto()
    #: Anything else.
    OTHER = enum.auto()


class FabricError(errors.AccelError):
    """Raised when a manager did not do what it was asked for.

    :param failure: why
    """

    for_owner = 'the links between its devices cannot be made usable now'

    def __init__(self, failure: Failure, thing: str, reason: str,
                 remedy: str = ''):
        super().__init__(thing, reason, remedy)
        self.failure = failure


class Fabric(typing.Protocol):
    """The partitions of a machine.

    Nothing is kept in memory: after a restart of nova-compute, a new object
    sees what this one did. Each method raises :class:`FabricError` if the
    manager fails, and ends after a limited time.
    """

    @abc.abstractmethod
    def partitions(self) -> collections.abc.Sequence[Partition]:
        """Return the partitions that can be used, and which are active.

        Those that need a broken card or switch may be missing. nova-compute
        calls it at most once in each periodic run, and before it activates a
        partition.

        :raises FabricError: with ``NOT_READY`` if the manager was restarted,
            and waits for :meth:`restore`
        """

    @abc.abstractmethod
    def activate(self, partition: int,
                 functions: collections.abc.Sequence[model.PciAddress] = (),
                 ) -> None:
        """Activate a partition.

        It is an error if it is active: the caller has to know who has it.

        :param functions: for vGPUs, one virtual function of each card, in the
            order of the partition's members (:func:`in_order`); none for
            whole cards
        :raises FabricError: if it was not activated
        """

    @abc.abstractmethod
    def deactivate(self, partition: int) -> None:
        """Deactivate a partition that no guest uses.

        :raises FabricError: if it was not deactivated, or was not active
        """

    @abc.abstractmethod
    def restore(self, active: collections.abc.Collection[int]) -> None:
        """Tell a manager that was restarted which partitions are active.

        A manager that keeps its state while it restarts need not do anything.

        :param active: all partitions whose guests run
        :raises FabricError: with ``NOT_SUPPORTED`` if this manager cannot
            take them over
        """

    @abc.abstractmethod
    def failed_links(self) -> collections.abc.Sequence[FailedLinks]:
        """Return the cards and switches that have failed links.

        On HGX H100 and later, Fabric Manager always returns none (source:
        nv_fm_agent.h); see :attr:`Member.has_failed_links`.

        :raises FabricError: with ``NOT_SUPPORTED`` if it cannot tell, as in
            the mode ``FABRIC_MODE_RESTART=1``
        """


@dataclasses.dataclass(frozen=True)
class Definition:
    """The value of ``[nova_accel] fabric_manager``.

    :param manager: the name of its entry point
    :param modules: the PCI address of the card on each module, as the
        operator configured it
    :param modules_command: the words of a command that prints them while the
        host's driver has the cards, () for none
    :param settings: the values of the manager's own keys
    :param text: the value of the option
    """

    manager: str
    modules: collections.abc.Mapping[int, model.PciAddress]
    modules_command: tuple[str, ...] = ()
    settings: collections.abc.Mapping[str, typing.Any] = dataclasses.field(
        default_factory=dict)
    text: str = ''


class Operations(typing.Protocol):
    """Runs commands of fabric managers as root.

    The object is a :class:`nova_accel.host.operate.Operations`.
    """

    def run_fabric_manager(self, definition: str, operation: str,
                           partitions: collections.abc.Collection[int] = (),
                           ) -> tuple[int | None, bytes]:
        """Run the :attr:`FabricManager.command` of a manager.

        :param definition: the value of the option
        :param operation: and ``partitions``, as for the manager's command
        :returns: its exit code and output
        """


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of a fabric manager.

    :param words: as a shell splits them
    :param timeout: seconds after which it is killed
    :param limit: its largest output in bytes
    """

    words: collections.abc.Sequence[str]
    timeout: float
    limit: int


@dataclasses.dataclass(frozen=True)
class FabricManager:
    """A fabric manager: the object that an entry point names.

    :param open: called with the value of the option and the operations on the
        machine; returns its Fabric. It must not ask the manager yet
    :param keys: readers of the keys that only this manager has in the option
    :param command: returns the command for an operation on partitions, or
        raises ValueError. Root runs those of the managers that
        :mod:`nova_accel.host.operations` names, and no others
    """

    open: collections.abc.Callable[[Definition, Operations], Fabric]
    keys: command_option.Readers = dataclasses.field(default_factory=dict)
    command: collections.abc.Callable[
        [Definition, str, collections.abc.Collection[int]],
        Command] | None = None


def in_order(partition: Partition,
             functions: collections.abc.Mapping[int, model.PciAddress],
             ) -> tuple[model.PciAddress, ...]:
    """Return virtual functions in the order that a partition wants.

    :param functions: one of each of its cards, by module
    :raises ValueError: if these are not exactly the partition's cards
    """
    if functions.keys() != partition.modules:
        raise ValueError(
            f'partition {partition.id} has the modules '
            f'{sorted(partition.modules)}, not {sorted(functions)}')
    return tuple(functions[member.module] for member in partition.members)
