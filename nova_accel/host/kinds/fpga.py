# SPDX-License-Identifier: Apache-2.0
"""FPGA regions: the functions by which a guest gets to use one.

A card with virtual functions is given away by these, otherwise as a whole.
Where it has one region, they all lead to it; where it has several, each leads
to its own, as the ports of Linux's DFL do. What is programmed is a trait; a
server can wish for a bitstream as well, which is programmed when it starts,
while nobody else holds anything of the region.

Sources: see :mod:`nova_accel.host.fpga`.
"""

import collections.abc
import contextlib
import dataclasses
import math
import re
import threading
import time
import weakref

import os_resource_classes as orc

from nova_accel.core import errors
from nova_accel.core import hostdev
from nova_accel.core import kind
from nova_accel.core import model
from nova_accel.core.placement import inventory
from nova_accel.core.request import fpga
from nova_accel.host import fpga as reader
from nova_accel.host import operations
from nova_accel.host import tree as trees

PROGRAM, TIMEOUT = 'program', 'program_timeout'
#: The value of ``program`` for the kernel's FPGA manager.
MANAGER = 'fpga_manager'

DEFAULT_TIMEOUT = 300
MAX_TIMEOUT = 3600

_PLACEHOLDERS = ('{bitstream}', '{address}', '{region}')
_REGION = 'region'

_HEAL = ('program it by hand with a bitstream that works; or restart '
         'nova-compute when it is well')


@dataclasses.dataclass(frozen=True)
class _Place:
    """A region: of which card, and which of it.

    :param variant: ``region0`` where the card has several, or ''
    """

    card: model.PciAddress
    variant: str = ''

    @property
    def number(self) -> int:
        return int(self.variant.removeprefix(_REGION) or 0)


@dataclasses.dataclass(frozen=True)
class _Facts:
    """What is known of a region.

    :param functions: what is programmed; several where its functions differ
    :param ids: of the bitstreams that fit
    :param on_card: how many regions its card has, if it says so
    :param faults: what is wrong with it
    """

    functions: frozenset[str] = frozenset()
    ids: frozenset[str] = frozenset()
    on_card: int = 0
    faults: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class _Failure:
    reason: str
    #: What was known of the region when it had failed.
    facts: _Facts


@dataclasses.dataclass(frozen=True)
class _Round:
    """What was seen when a Machine was looked at: one answer for all of it.

    A region can be programmed between two questions.

    :param began: when, in seconds
    :param shown: by PCI function
    """

    began: float
    shown: collections.abc.Mapping[model.PciAddress, reader.Shown]


class Regions:
    """Enumerator and Preparer."""

    def __init__(self, tree: trees.Tree):
        self._tree = tree
        #: What was shown when the host last had the driver: a guest's
        #: functions show nothing.
        self._seen: dict[_Place, _Facts] = {}
        self._failures: dict[_Place, _Failure] = {}
        #: Which file was programmed here, and what was known then.
        self._programmed: dict[_Place, tuple[str, _Facts]] = {}
        #: What is being programmed or has been: what it was before, and
        #: until when, in seconds.
        self._busy: dict[_Place, tuple[_Facts, float]] = {}
        #: By card: its regions have one manager.
        self._locks: dict[model.PciAddress, threading.Lock] = {}
        self._rounds: collections.abc.MutableMapping[kind.Machine, _Round] = (
            weakref.WeakKeyDictionary())

    def pools(self, function: model.Function, entry: kind.Entry,
              machine: kind.Machine) -> collections.abc.Iterator[kind.Pool]:
        facts, fault, place = self._found(function, machine)
        unit = machine.bundle(function)
        is_whole = not function.physfn
        cards = unit if place.card in unit else (place.card,)
        pool = kind.Pool(
            (unit,), place.variant, frozenset().union(*(fpga.traits(
                card.vendor_id, card.product_id,
                # A unit has the one or the other. A whole card shows what
                # its last guest wanted it to show.
                facts.functions if len(facts.functions) == 1
                and not is_whole else (),
                facts.ids) for card in map(machine.functions.get, cards)
                if card)), orc.FPGA, programmed=True,
            needs_driver=is_whole and bool(entry.setting(PROGRAM)))
        if fault and place.variant:
            # The card's other regions keep their places.
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
        """Program the region, or check what is programmed into it."""
        place = _Place(item.device.address, item.region.variant)
        members = sorted({device.address, *(
            address for unit in item.region.units for address in unit)})
        with self._locks.setdefault(place.card, threading.Lock()):
            facts = self._look(place, members)
            bitstream = config.bitstream
            if bitstream is None:
                _check_promised(item, facts, config.traits)
            elif not (_is_done(device, place, members)
                      or self._has(place, members, facts, bitstream)):
                _check_free(place, item, facts, bitstream)
                self._program(place, members, item, facts, bitstream)

    def prepared(self, host: model.Host) -> tuple[()]:
        """Nothing: what is programmed stays for the next who asks for it."""
        return ()

    def release(self, address: model.Address) -> None:
        pass

    # What there is

    def _found(self, function, machine) -> tuple[_Facts, str, _Place]:
        """What is known of a function's region, why it is withheld; which."""
        if machine not in self._rounds:
            self._rounds[machine] = _Round(time.monotonic(),
                                           reader.read(self._tree))
        now = self._rounds[machine]
        place, members = _place(function, machine, now.shown)
        # What is shown of these can be half of before and half of after.
        busy = {other: facts for other, (facts, ended)
                in self._busy.copy().items() if ended >= now.began}
        # What its card's manager says meanwhile is about the other region.
        is_card_busy = any(other.card == place.card for other in busy)
        facts = busy.get(place) or self._look(
            place, members, now.shown, is_card_busy)
        return facts, self._fault(place, facts, is_card_busy), place

    def _look(self, place, members, shown=None, is_card_busy=False) -> _Facts:
        if shown is None:
            shown = reader.read(self._tree)
        cards = _cards(place, members, shown)
        doors = [shown[address] for address in members if address in shown]
        facts = _Facts(
            frozenset().union(*(door.functions for door in doors)),
            frozenset().union(*(card.ids for card in cards)),
            sum(len(card.regions) for card in cards),
            (*(fault for door in doors for fault in door.port_faults),
             *(fault for card in cards if not is_card_busy
               for fault in card.faults)))
        if any(door.ports for door in doors):
            self._seen[place] = facts
            return facts
        # In guests, or of a driver that does not show it.
        before = self._seen.get(place, _Facts())
        return dataclasses.replace(facts, functions=before.functions,
                                   ids=facts.ids or before.ids)

    def _fault(self, place, facts, is_card_busy) -> str:
        """Why a region is withheld, or ''."""
        failure = self._failures.get(place)
        if failure and facts != failure.facts and not (
                facts.faults or is_card_busy):
            # Somebody has seen to it.
            self._failures.pop(place, None)
            failure = None
        return failure.reason if failure else '; '.join(facts.faults)

    # What is made of it

    def _has(self, place, members, facts, bitstream) -> bool:
        """Whether a region has a bitstream already."""
        if (place in self._failures or facts.faults
                # A guest that has all of a card can have programmed it.
                or place.card in members):
            return False
        if bitstream.function and facts.functions:
            return facts.functions == {bitstream.function}
        # One of the two does not say what it is. That it was programmed here
        # is enough as long as somebody keeps the region as it is.
        return bitstream.shared and (
            self._programmed.get(place) == (bitstream.path, facts))

    def _program(self, place, members, item, facts, bitstream) -> None:
        with self._as_busy(place, facts):
            try:
                reason = self._run(place, members, item, bitstream)
            except errors.AccelError:
                # Nothing was begun.
                raise
            except Exception as error:
                reason = ('nobody knows how that ended: ' + errors.quote(
                    f'{type(error).__name__}: {error}'))
            self._programmed.pop(place, None)
            self._seen.pop(place, None)
            after = self._look(place, members)
            reason = reason or _outcome(after, bitstream)
            if reason:
                reason = f'{bitstream.thing} was programmed and {reason}'
                self._failures[place] = _Failure(reason, after)
                raise errors.AssignmentError(_thing(item), reason, _HEAL)
            self._failures.pop(place, None)
            self._programmed[place] = bitstream.path, after

    def _run(self, place, members, item, bitstream) -> str:
        """Program; what went wrong, or ''.

        :raises errors.AssignmentError: if nothing was begun
        """
        program = _program_of(item)
        if program == MANAGER:
            return self._by_manager(self._manager(place, members, item),
                                    item, bitstream)
        return self._by_command(program, place, item, bitstream)

    @contextlib.contextmanager
    def _as_busy(self, place, facts):
        self._busy[place] = facts, math.inf
        try:
            yield
        finally:
            self._busy[place] = facts, time.monotonic()

    def _manager(self, place, members, item) -> str:
        """The manager that programs a card, by name."""
        managers = [manager for card in _cards(
            place, members, reader.read(self._tree))
            for manager in card.managers]
        if len(managers) != 1:
            raise errors.AssignmentError(
                _thing(item), f'has {len(managers) or "no"} FPGA managers',
                'name a command in the entry\'s "program"')
        if not reader.has_firmware(self._tree, managers[0]):
            raise errors.AssignmentError(
                _thing(item), f'its FPGA manager {managers[0]} has no '
                'attribute "firmware" in this kernel',
                'name a command in the entry\'s "program"')
        return managers[0]

    def _by_manager(self, manager, item, bitstream) -> str:
        refused = ''
        try:
            operations.on(self._tree).program_by_manager(manager,
                                                         bitstream.path)
        except (OSError, ValueError) as error:
            refused = str(error)
        now = reader.state(self._tree, manager)
        if refused and not now.endswith('error'):
            # The kernel never got as far as to try.
            raise errors.AssignmentError(
                _thing(item), f'{manager} cannot program {bitstream.thing}: '
                f'{refused}')
        return '' if now == 'operating' else (
            f'{manager} is in state {errors.quote(now)}, not operating')

    def _by_command(self, template, place, item, bitstream) -> str:
        timeout = item.region.setting(TIMEOUT) or DEFAULT_TIMEOUT
        try:
            code, said = operations.on(self._tree).program_by_command(
                list(template), bitstream.path, str(place.card),
                str(place.number), timeout)
        except (OSError, ValueError) as error:
            raise errors.AssignmentError(
                _thing(item), f'{errors.quote(template[0])} cannot be run: '
                f'{error}') from None
        if code == 0:
            return ''
        return (f'{errors.quote(template[0])} '
                + (f'ended with {code}' if code is not None else
                   f'was killed: it was not done after {timeout} seconds')
                + (f' and said {_printable(said)}' if said.strip() else ''))


def _place(function, machine, shown) -> tuple[_Place, list]:
    """The region that a function leads to, and all functions that do."""
    if not function.physfn:
        # A card can have one for guests and one to manage it by.
        unit = machine.bundle(function)
        return _Place(unit[0]), list(unit)
    vfs = sorted(other.address for other in machine.functions.values()
                 if other.physfn == function.physfn)
    card = shown.get(function.physfn, reader.Shown())
    if len(card.regions) < 2:
        return _Place(function.physfn), vfs
    return _Place(function.physfn, _REGION + str(
        vfs.index(function.address))), [function.address]


def _is_done(device, place, members) -> bool:
    """Whether a card is programmed for another function of the same unit."""
    return place.card in members and device.address != place.card


def _cards(place, members, shown) -> list[reader.Shown]:
    """What the functions show that are no VFs."""
    return [shown[address] for address in (
        members if place.card in members else [place.card])
        if address in shown]


def _thing(item) -> str:
    """What messages call a region."""
    return (f'device {item.device.address} ({item.device.ids})'
            + (f', {item.region.variant}' if item.region.variant else ''))


def _program_of(item):
    program = item.region.setting(PROGRAM)
    if not program:
        raise errors.AssignmentError(
            _thing(item), 'is not programmed here: its entry in device_spec '
            'has no "program"', 'add one, or ask for a function instead')
    return program


def _check_promised(item, facts, traits) -> None:
    """Check that the function that was promised is still there."""
    wanted = set(filter(fpga.is_function_trait, traits))
    has = item.region.traits | fpga.traits(
        item.device.ids.partition(':')[0], '', facts.functions, ())
    if facts.functions and wanted - has:
        raise errors.AssignmentError(
            _thing(item), f'was promised with {min(wanted - has)}, and '
            f'function {", ".join(sorted(facts.functions))} is programmed '
            'by now', 'program it again, or migrate the server')


def _check_free(place, item, facts, bitstream) -> None:
    """Check that a region may be given another function."""
    _program_of(item)
    if facts.on_card > 1 and not place.variant:
        raise errors.AssignmentError(
            _thing(item), f'has {facts.on_card} regions, and is given away '
            'as a whole: which of them is meant nobody says',
            'make virtual functions of it, and name these')
    if place.variant and not _names_region(_program_of(item)):
        raise errors.AssignmentError(
            _thing(item), 'is one of several regions, and the "program" of '
            'its entry does not say which', 'name a command with {region}')
    bitstream.check_fits(item.device.ids.partition(':')[0], facts.ids)
    if bitstream.rivals:
        raise errors.AssignmentError(
            _thing(item), f'{bitstream.thing} cannot be programmed while '
            f'other servers hold the region: {", ".join(bitstream.rivals)}')


def _names_region(program) -> bool:
    return program != MANAGER and any('{region}' in word for word in program)


def _outcome(facts, bitstream) -> str:
    """What is wrong with a region that was programmed, or ''."""
    if facts.faults:
        return '; '.join(facts.faults)
    if bitstream.function and facts.functions and (
            facts.functions != {bitstream.function}):
        return (f'the region shows function '
                f'{", ".join(sorted(facts.functions))}, not '
                f'{bitstream.function}')
    return ''


def _printable(said: bytes) -> str:
    """The end of what a command said, in one line."""
    text = said.decode('utf-8', 'replace').strip()
    return errors.quote(text[-errors.QUOTE_LIMIT // 2:])


def _read_program(value: object) -> str | tuple[str, ...]:
    if value == MANAGER:
        return MANAGER
    if not isinstance(value, list) or not value or not all(
            isinstance(word, str) and word and '\0' not in word
            for word in value):
        raise ValueError(f'is neither "{MANAGER}" nor a list of words')
    if not value[0].startswith('/'):
        raise ValueError('does not begin with the absolute path of a command')
    found = re.findall(r'\{\w*\}', ' '.join(value[1:]))
    unknown = [name for name in found if name not in _PLACEHOLDERS]
    if unknown:
        raise ValueError(f'has {unknown[0]}; it may have '
                         f'{", ".join(_PLACEHOLDERS)}')
    if '{bitstream}' not in found:
        raise ValueError('has no {bitstream}')
    return tuple(value)


def _read_timeout(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not (
            1 <= value <= MAX_TIMEOUT):
        raise ValueError(f'is not a number of seconds, 1 to {MAX_TIMEOUT}')
    return value


KIND = kind.Kind(open=Regions,
                 keys={PROGRAM: _read_program, TIMEOUT: _read_timeout},
                 programs=True)
