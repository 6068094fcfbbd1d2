# SPDX-License-Identifier: Apache-2.0
"""FPGA regions: the PCI functions that give a guest access to a region.

A card with virtual functions is offered by its VFs, any other as a whole. If
the card has one region, all VFs lead to it; if it has several, each VF leads
to its own, as the ports of Linux's DFL do. The programmed function is a trait.
A server can require a bitstream: it is programmed when the server starts,
unless this nova-compute has programmed it, and only servers of the same
project have had the region since. Servers that have a region at the same time
share what is programmed.

Sources: see :mod:`nova_accel.host.fpga`.
"""

import collections.abc
import contextlib
import dataclasses
import logging
import math
import threading
import time
import typing
import weakref

import os_resource_classes as orc

from nova_accel.core import errors
from nova_accel.core import hostdev
from nova_accel.core import kind
from nova_accel.core import model
from nova_accel.core.placement import inventory
from nova_accel.core.request import fpga
from nova_accel.host import commands
from nova_accel.host import fpga as reader
from nova_accel.host import fpga_program
from nova_accel.host import operate
from nova_accel.host import tree as trees

LOG = logging.getLogger(__name__)

_REGION = 'region'

#: The PCI functions of a region.
_Members = collections.abc.Collection[model.Address]

_HEAL = ('program it by hand with a bitstream that works; or restart '
         'nova-compute once the region works again')


@dataclasses.dataclass(frozen=True)
class _Place:
    """Identifies a region.

    :param card: address of its card
    :param variant: ``region0`` if the card has several regions, else ''
    """

    card: model.Address
    variant: str = ''

    @property
    def number(self) -> int:
        return int(self.variant.removeprefix(_REGION) or 0)


@dataclasses.dataclass(frozen=True)
class _Facts:
    """What sysfs shows of a region.

    :param functions: ids of the programmed functions; several if its PCI
        functions differ
    :param ids: ids of regions; a bitstream must have one of them
    :param on_card: how many regions its card shows
    :param faults: what is wrong with it
    """

    functions: frozenset[str] = frozenset()
    ids: frozenset[str] = frozenset()
    on_card: int = 0
    faults: tuple[str, ...] = ()

    def agree(self, other: '_Facts') -> bool:
        """Whether both can be of one state.

        Functions of a region show nothing while vfio has them.
        """
        return self == other or (
            not (self.functions and other.functions)
            and dataclasses.replace(self, functions=other.functions) == other)


@dataclasses.dataclass(frozen=True)
class _Programmed:
    """What we have programmed into a region.

    :param facts: the state that the region showed with it
    :param project: the only one whose servers have had the region since, ''
        if there are others
    """

    bitstream: fpga.Bitstream
    facts: _Facts
    project: str


@dataclasses.dataclass(frozen=True)
class _Failure:
    reason: str
    #: The region's state after the failure.
    facts: _Facts


@dataclasses.dataclass(frozen=True)
class _Round:
    """What sysfs shows of a whole Machine, read once.

    One reading for all regions, as one may be programmed between two readings.

    :param began: when the reading began, in seconds
    """

    began: float
    shown: reader.All


@typing.final
class Regions(kind.Enumerator, kind.Suggester, kind.Preparer,
              kind.Programmer):
    """Finds and programs FPGA regions."""

    def __init__(self, tree: trees.Tree):
        self._tree = tree
        #: What was shown when the host's driver last had the functions:
        #: functions in guests show nothing.
        self._seen: dict[_Place, _Facts] = {}
        self._failures: dict[_Place, _Failure] = {}
        self._programmed: dict[_Place, _Programmed] = {}
        #: Regions that are or were being programmed: the state before, and
        #: when it ended, in seconds.
        self._busy: dict[_Place, tuple[_Facts, float]] = {}
        #: One lock a card: its regions share one FPGA manager.
        self._locks: dict[model.Address, threading.Lock] = {}
        self._rounds: collections.abc.MutableMapping[kind.Machine, _Round] = (
            weakref.WeakKeyDictionary())

    def pools(self, function: model.Function, entry: kind.Entry,
              machine: kind.Machine) -> collections.abc.Iterator[kind.Pool]:
        facts, fault, place = self._find(function, machine)
        unit = machine.bundle(function)
        is_whole = not function.physfn
        cards = unit if place.card in unit else (place.card,)
        pool = kind.Pool(
            (unit,), place.variant, frozenset().union(*(fpga.traits(
                card.vendor_id, card.product_id,
                # No trait if functions differ. A whole card has none: its
                # last guest can have programmed it and decides what it shows.
                facts.functions if len(facts.functions) == 1
                and not is_whole else (),
                facts.ids) for card in map(machine.functions.get, cards)
                if card)), orc.FPGA, programmed=True,
            needs_driver=is_whole and bool(
                entry.setting(fpga_program.PROGRAM)))
        if fault and place.variant:
            # An empty Region, so that the others of the card keep theirs.
            yield dataclasses.replace(pool, units=())
        if fault:
            raise kind.Refused(fault, _HEAL)
        yield pool

    def suggest(self, function: model.Function,
                ) -> collections.abc.Iterator[dict[str, str]]:
        if function.address in reader.read(self._tree):
            yield {'kind': 'fpga'}

    def prepare(self, device: hostdev.Hostdev, item: inventory.Offered,
                config: kind.DeviceConfig) -> None:
        """Program the region's bitstream, or check the function it shows."""
        place, members = _region_of(device, item)
        with self._locks.setdefault(place.card, threading.Lock()):
            facts = self._read_facts(place, members)
            bitstream = config.bitstream
            if bitstream is None:
                _check_allocated(item, facts, config.traits)
            elif not (self._has(place, members, facts, bitstream,
                                config.project)
                      or _is_other_function(device, place, members)):
                _check_free(place, item, facts, bitstream)
                self._program(place, members, item, facts, bitstream,
                              config.project)
            self._use(place, config.project)

    def is_programmed(self, device: hostdev.Hostdev, item: inventory.Offered,
                      image: str, project: str) -> bool:
        """Whether a region shows the function that the image programmed."""
        place, members = _region_of(device, item)
        known = self._programmed.get(place)
        return (known is not None and known.bitstream.image == image
                and self._has(place, members, self._read_facts(place, members),
                              dataclasses.replace(known.bitstream,
                                                  shared=False,
                                                  shared_with_others=False),
                              project))

    def forget(self, item: inventory.Offered) -> None:
        place = _Place(item.device.address, item.region.variant)
        self._programmed.pop(place, None)
        self._seen.pop(place, None)

    def prepared(self, host: model.Host) -> tuple[()]:
        """Return nothing: a bitstream stays for the next server."""
        return ()

    def release(self, address: model.Address) -> None:
        pass

    # Reading

    def _find(self, function: model.Function, machine: kind.Machine,
              ) -> tuple[_Facts, str, _Place]:
        """Return the state of a function's region, its fault, and its place.

        :returns: the fault is the reason to withhold the region, or ''
        """
        if machine not in self._rounds:
            self._rounds[machine] = _Round(time.monotonic(),
                                           reader.read(self._tree))
        now = self._rounds[machine]
        place, members = _place(function, machine, now.shown)
        # While these were programmed, sysfs may have shown a mixed state.
        busy = {other: facts for other, (facts, ended)
                in self._busy.copy().items() if ended >= now.began}
        # Then the state of the card's manager is about the busy region.
        is_card_busy = any(other.card == place.card for other in busy)
        facts = busy.get(place) or self._read_facts(
            place, members, now.shown, is_card_busy)
        return facts, self._fault(place, facts, is_card_busy), place

    def _read_facts(self, place: _Place, members: _Members,
                    shown: reader.All | None = None,
                    is_card_busy: bool = False) -> _Facts:
        if shown is None:
            shown = reader.read(self._tree)
        units = [shown[address] for address in members if address in shown]
        facts = _facts(units, _cards(place, members, shown), is_card_busy)
        if any(unit.ports for unit in units):
            self._seen[place] = facts
            return facts
        # The functions are in guests, or their driver shows no ports.
        before = self._seen.get(place, _Facts())
        return dataclasses.replace(facts, functions=before.functions,
                                   ids=facts.ids or before.ids)

    def _fault(self, place: _Place, facts: _Facts,
               is_card_busy: bool) -> str:
        """Return why a region is withheld, or ''."""
        failure = self._failures.get(place)
        if failure and facts != failure.facts and not (
                facts.faults or is_card_busy):
            # The state has changed: the operator has repaired the region.
            self._failures.pop(place, None)
            failure = None
        return failure.reason if failure else '; '.join(facts.faults)

    # Programming

    def _has(self, place: _Place, members: _Members, facts: _Facts,
             bitstream: fpga.Bitstream, project: str) -> bool:
        """Whether a region has a bitstream for a server of a project."""
        if (place in self._failures or facts.faults
                # A guest that held the whole card can have programmed it.
                or place.card in members):
            return False
        known = self._programmed.get(place)
        if known and not (known.bitstream.path == bitstream.path
                          and known.facts.agree(facts)):
            LOG.debug('%s: programmed again, as its state is %s, and was %s',
                      place, facts, known)
            known = None
        if not (bitstream.conflicting_servers or known and (
                bitstream.shared_with_others
                or project and known.project == project)):
            # Any guest could leave something in the logic of the next one.
            return False
        if bitstream.function and facts.functions:
            return facts.functions == {bitstream.function}
        # The bitstream or the region has no function id. Rely on our own
        # programming of it, as long as other servers hold the region.
        return bitstream.shared and known is not None

    def _use(self, place: _Place, project: str) -> None:
        """Note that a server gets a region."""
        known = self._programmed.get(place)
        if known and known.project != project:
            self._programmed[place] = dataclasses.replace(known, project='')

    def _program(self, place: _Place, members: _Members,
                 item: inventory.Offered, facts: _Facts,
                 bitstream: fpga.Bitstream, project: str) -> None:
        LOG.info('Programming %s with %s', _thing(item), bitstream.thing)
        with self._as_busy(place, facts):
            try:
                reason = self._run(place, members, item, bitstream)
            except errors.AccelError:
                # Programming did not begin.
                raise
            except Exception as error:
                reason = 'the outcome is unknown: ' + errors.quote(
                    f'{type(error).__name__}: {error}')
            self._programmed.pop(place, None)
            self._seen.pop(place, None)
            after = self._read_facts(place, members)
            reason = reason or _outcome(after, bitstream)
            if reason:
                reason = f'{bitstream.thing} was programmed and {reason}'
                self._failures[place] = _Failure(reason, after)
                raise errors.AssignmentError(_thing(item), reason, _HEAL)
            self._failures.pop(place, None)
            self._programmed[place] = _Programmed(bitstream, after, project)

    def _run(self, place: _Place, members: _Members, item: inventory.Offered,
             bitstream: fpga.Bitstream) -> str:
        """Program a bitstream; return what went wrong, or ''.

        :raises errors.AssignmentError: if programming did not begin
        """
        program = _program_of(item)
        if isinstance(program, tuple):
            return self._by_command(program, place, item, bitstream)
        return self._by_manager(self._manager(place, members, item), item,
                                bitstream)

    @contextlib.contextmanager
    def _as_busy(self, place: _Place, facts: _Facts,
                 ) -> collections.abc.Iterator[None]:
        self._busy[place] = facts, math.inf
        try:
            yield
        finally:
            self._busy[place] = facts, time.monotonic()

    def _manager(self, place: _Place, members: _Members,
                 item: inventory.Offered) -> str:
        """Return the name of the FPGA manager that programs a card."""
        try:
            return reader.manager(self._tree, _cards(
                place, members, reader.read(self._tree)))
        except ValueError as error:
            raise errors.AssignmentError(
                _thing(item), str(error),
                'name a command in the entry\'s "program"') from None

    def _by_manager(self, manager: str, item: inventory.Offered,
                    bitstream: fpga.Bitstream) -> str:
        refused = ''
        try:
            operate.on(self._tree).program_by_manager(manager,
                                                         bitstream.path)
        except (OSError, ValueError) as error:
            refused = str(error)
        now = reader.state(self._tree, manager)
        if refused and not now.endswith('error'):
            # The kernel did not begin to program.
            raise errors.AssignmentError(
                _thing(item), f'{manager} cannot program {bitstream.thing}: '
                f'{refused}')
        return '' if now == 'operating' else (
            f'{manager} is in state {errors.quote(now)}, not operating')

    def _by_command(self, template: tuple[str, ...], place: _Place,
                    item: inventory.Offered, bitstream: fpga.Bitstream,
                    ) -> str:
        timeout = (item.region.setting(fpga_program.TIMEOUT)
                   or fpga_program.DEFAULT_TIMEOUT)
        try:
            code, output = operate.on(self._tree).program_by_command(
                list(template), bitstream.path, str(place.card),
                str(place.number), timeout)
        except (OSError, ValueError) as error:
            raise errors.AssignmentError(
                _thing(item), f'{errors.quote(template[0])} cannot be run: '
                f'{error}') from None
        return commands.describe(template[0], code, output, timeout)


def _region_of(device: hostdev.Hostdev, item: inventory.Offered,
               ) -> tuple[_Place, list[model.Address]]:
    """Return the region of a guest's device, and its functions."""
    return _Place(item.device.address, item.region.variant), sorted({
        device.address, *(address for unit in item.region.units
                          for address in unit)})


def _place(function: model.Function, machine: kind.Machine,
           shown: reader.All) -> tuple[_Place, _Members]:
    """Return the region that a function leads to, and all its functions."""
    if not function.physfn:
        # A card can have a function for guests and one for management.
        unit = machine.bundle(function)
        return _Place(unit[0]), unit
    vfs = sorted(other.address for other in machine.functions.values()
                 if other.physfn == function.physfn)
    card = shown.get(function.physfn, reader.Shown())
    if len(card.regions) < 2:
        return _Place(function.physfn), vfs
    return _Place(function.physfn, _REGION + str(
        vfs.index(function.address))), [function.address]


def _facts(units: collections.abc.Collection[reader.Shown],
           cards: collections.abc.Collection[reader.Shown],
           is_card_busy: bool) -> _Facts:
    """Combine what the functions of a region and of its card show."""
    return _Facts(
        frozenset().union(*(unit.functions for unit in units)),
        frozenset().union(*(card.ids for card in cards)),
        sum(len(card.regions) for card in cards),
        (*(fault for unit in units for fault in unit.port_faults),
         *(fault for card in cards if not is_card_busy
           for fault in card.faults)))


def _is_other_function(device: hostdev.Hostdev, place: _Place,
                       members: _Members) -> bool:
    """Whether a device is an additional function of a whole card.

    The card is programmed once, with its first function.
    """
    return place.card in members and device.address != place.card


def _cards(place: _Place, members: _Members,
           shown: reader.All) -> list[reader.Shown]:
    """Return what the physical functions show."""
    return [shown[address] for address in (
        members if place.card in members else [place.card])
        if address in shown]


def _thing(item: inventory.Offered) -> str:
    """Return the name of a region in messages."""
    return (f'device {item.device.address} ({item.device.ids})'
            + (f', {item.region.variant}' if item.region.variant else ''))


def _program_of(item: inventory.Offered) -> fpga_program.Program:
    program: fpga_program.Program | None = item.region.setting(
        fpga_program.PROGRAM)
    if not program:
        raise errors.AssignmentError(
            _thing(item), 'is not programmed here: its entry in device_spec '
            'has no "program"', 'add one, or require a function instead')
    return program


def _check_allocated(item: inventory.Offered, facts: _Facts,
                     traits: collections.abc.Iterable[str]) -> None:
    """Check that the region still has the function of the allocation."""
    wanted = set(filter(fpga.is_function_trait, traits))
    has = item.region.traits | fpga.traits(
        item.device.ids.partition(':')[0], '', facts.functions, ())
    if facts.functions and wanted - has:
        raise errors.AssignmentError(
            _thing(item), f'was allocated with {min(wanted - has)}, but '
            f'function {", ".join(sorted(facts.functions))} is programmed '
            'now', 'program it again, or migrate the server')


def _check_free(place: _Place, item: inventory.Offered, facts: _Facts,
                bitstream: fpga.Bitstream) -> None:
    """Check that a bitstream may be programmed into a region."""
    program = _program_of(item)
    if facts.on_card > 1 and not place.variant:
        raise errors.AssignmentError(
            _thing(item), f'has {facts.on_card} regions and is offered as a '
            'whole, so the region to program is unknown',
            'enable its virtual functions, and name these in device_spec')
    if place.variant and not fpga_program.names_region(program):
        raise errors.AssignmentError(
            _thing(item), 'is one of several regions, and the "program" of '
            'its entry does not say which', 'name a command with {region}')
    bitstream.check_fits(item.device.ids.partition(':')[0], facts.ids)
    if bitstream.conflicting_servers:
        raise errors.AssignmentError(
            _thing(item), f'{bitstream.thing} cannot be programmed while '
            'other servers hold the region: '
            + ', '.join(bitstream.conflicting_servers))


def _outcome(facts: _Facts, bitstream: fpga.Bitstream) -> str:
    """Return what is wrong with a region after programming, or ''."""
    if facts.faults:
        return '; '.join(facts.faults)
    if bitstream.function and facts.functions and (
            facts.functions != {bitstream.function}):
        return (f'the region shows function '
                f'{", ".join(sorted(facts.functions))}, not '
                f'{bitstream.function}')
    return ''


KIND = kind.Kind(open=Regions, keys=fpga_program.KEYS, programs=True)
