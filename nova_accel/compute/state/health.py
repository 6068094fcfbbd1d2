# SPDX-License-Identifier: Apache-2.0
"""Withholds the devices whose health is in doubt."""

import collections
import collections.abc
import itertools
import threading
import time

import nova.conf
from oslo_log import log as logging

from nova_accel.compute import background
from nova_accel.compute import log_once
from nova_accel.core import health
from nova_accel.core import kind
from nova_accel.core import model
from nova_accel.core.placement import inventory
from nova_accel.host import health as sysfs
from nova_accel.host import tree as trees

LOG = logging.getLogger(__name__)

CONF = nova.conf.CONF

_UNHEALTHY = model.WithheldState.UNHEALTHY
_BLOCKED = ('its health is unknown: nova-compute cannot read it in time, as '
            'while the kernel resets a device')
_REMEDY = ('look for it in the kernel log; servers that hold it keep it, and '
           'it is offered again when this is over (see the options health_* '
           'in [nova_accel])')
_UNREAD = model.Withheld(
    'its health is unknown: nova-compute has not read it yet',
    'it is read in the next run of the periodic tasks', _UNHEALTHY)

#: What is wrong with each function that was read, '' for nothing.
_Problems = dict[model.PciAddress, str]


class Health:
    """What is wrong with the devices of this host, as it was read last.

    Each card is read in a thread of its own, since a reset that hangs blocks
    the reading. A device that was not read is withheld.

    Counters are compared with those of the first look, except for devices that
    were withheld before nova-compute started: all their errors count.
    """

    def __init__(self) -> None:
        self._cards: dict[model.PciAddress, _Card] = {}
        # Both are None before the first check.
        self._problems: _Problems | None = None
        self._withheld_before: collections.abc.Container | None = None
        self._broken = log_once.LogOnce(LOG)

    def check(self, tree: trees.Tree, here: inventory.NodeInventory,
              kinds: collections.abc.Mapping[str, kind.Enumerator],
              ) -> tuple[bool, set[model.PciAddress]]:
        """Look at all functions of devices.

        :param kinds: opened on the tree, by name
        :returns: whether problems have changed, and the functions that have
            none any more
        """
        before = self._problems
        if self._withheld_before is None:
            self._withheld_before = here.node.withheld
        look = _Look(tree, here, kinds, self._withheld_before)
        self._forget_missing(here.host.functions)
        self._read(look, _cards(here))
        after = self._problems = {
            address: problem for card in self._cards.values()
            for address, problem in card.problems.items()}
        return before != after, _log_recovered(before or {}, after)

    def withheld(self, functions: collections.abc.Iterable[model.Function],
                 ) -> dict[model.PciAddress, model.Withheld]:
        """Return the functions with problems, with reason and remedy.

        Before the first check there are none: Placement is told after it.
        """
        problems = self._problems
        if problems is None:
            return {}
        found = {}
        for function in functions:
            problem = problems.get(function.address)
            if problem is None:
                found[function.address] = _UNREAD
            elif problem:
                found[function.address] = model.Withheld(problem, _REMEDY,
                                                         _UNHEALTHY)
        return found

    def _forget_missing(self, functions) -> None:
        """Forget functions and cards that do not exist any more.

        A card whose reader still runs may come back: it gets no other reader.
        """
        existing = {function.address for function in functions}
        cards = {_card_of(function) for function in functions}
        self._cards = {address: card for address, card in self._cards.items()
                       if address in cards or card.is_busy()}
        for card in self._cards.values():
            card.keep_only(existing)

    def _read(self, look: '_Look', functions) -> None:
        """Read all cards, :data:`background.WAIT` seconds at most.

        :param functions: the functions to read, by card
        """
        for address in functions:
            self._cards.setdefault(address, _Card(address))
        cards = [self._cards[address] for address in functions]
        background.wait([thread for card, named in zip(
            cards, functions.values(), strict=True)
            if (thread := card.start(look, named))])
        for card in cards:
            card.end()
        self._broken.log(itertools.chain(*(card.failures for card in cards)))


class _Look:
    """One look at the functions of cards, which can be read in parallel.

    :param withheld: the states of units before nova-compute started
    """

    def __init__(self, tree, here, kinds, withheld) -> None:
        self._tree = tree
        self._limits = _limits()
        self._vfs = collections.Counter(function.physfn
                                        for function in here.host.functions)
        self._suspected = _addresses(item for item in here.offered
                                     if (item.uuid, _UNHEALTHY) in withheld)
        self._examiners = {name: opened for name, opened in kinds.items()
                           if isinstance(opened, kind.Examiner)}

    def at(self, function: model.Function,
           histories: dict[model.PciAddress, health.History],
           failures: list[log_once.Line]) -> str:
        """Return what is wrong with a function, or ''.

        :param histories: of its card; gets the present errors
        :param failures: gets a line for each kind that cannot tell
        """
        address = function.address
        facts = sysfs.read(self._tree, function, self._vfs[address])
        if address not in histories:
            histories[address] = health.History(
                {} if address in self._suspected else facts.errors)
        # The reading may have been blocked for hours.
        recent = histories[address].add(time.monotonic(), facts.errors)
        return '; '.join((
            *health.problems(facts, recent, self._limits),
            *_examine(function, self._examiners, failures)))


class _Card:
    """What is known of a card, with its virtual functions.

    Its histories and problems are kept while no entry names it.

    :ivar failures: why it could not be read, or not by a kind
    """

    def __init__(self, address: model.PciAddress) -> None:
        self._address = address
        self._reader = background.Runner()
        self._histories: dict[model.PciAddress, health.History] = {}
        self._found: _Problems = {}
        self._result: list[tuple[_Problems, list[log_once.Line]]] = []
        self.failures: list[log_once.Line] = []

    def is_busy(self) -> bool:
        """Whether its reader still runs."""
        return self._reader.is_busy()

    def keep_only(self, existing: collections.abc.Set[model.PciAddress],
                  ) -> None:
        """Forget the functions that do not exist any more."""
        if not self.is_busy():
            for known in self._histories, self._found:
                for address in known.keys() - existing:
                    del known[address]

    def start(self, look: _Look,
              functions: collections.abc.Sequence[model.Function],
              ) -> threading.Thread | None:
        """Start to read functions, unless the last reader still runs.

        :returns: the thread that reads
        """
        # What the last reader finds if it still runs is old: ignore it.
        self._result = result = []

        def read():
            failures: list[log_once.Line] = []
            result.append(({function.address: look.at(
                function, self._histories, failures)
                for function in functions}, failures))

        try:
            return self._reader.start(read)
        except RuntimeError as error:
            self.failures = [(logging.WARNING, 'Cannot read the health of '
                              f'{self._address}: {error}')]
            return None

    def end(self) -> None:
        """Take over what the reader has found, if it has ended."""
        for found, failures in self._result:
            self._found.update(found)
            self.failures = failures

    @property
    def problems(self) -> _Problems:
        """What is wrong with its functions.

        If its reader is blocked, this is a problem of the card: its virtual
        functions are withheld with it. A known problem stays: the reset that
        blocks may be due to it.
        """
        if self._result:
            return self._found
        known = self._found.get(self._address)
        return {**self._found, self._address: '; '.join(
            filter(None, (known, _BLOCKED)))}


def _log_recovered(before: _Problems, after: _Problems,
                   ) -> set[model.PciAddress]:
    """Log and return the functions that have no problem any more."""
    recovered = {address for address, problem in before.items()
                 if problem and after.get(address) == ''}
    for address in sorted(recovered):
        LOG.info('Device %s is healthy again: it was withheld because %s',
                 address, before[address])
    return recovered


def _card_of(function: model.Function) -> model.PciAddress:
    return function.physfn or function.address


def _cards(here: inventory.NodeInventory,
           ) -> dict[model.PciAddress, list[model.Function]]:
    """Return the functions of devices by card."""
    named, found = _addresses(here.offered), collections.defaultdict(list)
    for function in here.host.functions:
        if function.address in named:
            found[_card_of(function)].append(function)
    return found


def _examine(function, examiners, failures: list[log_once.Line],
             ) -> collections.abc.Iterator[str]:
    """Yield what kinds find wrong with a function.

    :param failures: gets a line for each kind that cannot tell
    """
    for name, examiner in examiners.items():
        try:
            yield from examiner.examine(function)
        except Exception as error:
            failures.append((logging.WARNING, f'Kind {name} cannot examine '
                             f'{function.address}: {error!r}'))


def _addresses(items: collections.abc.Iterable[inventory.Offered],
               ) -> set[model.Address]:
    """Return the addresses of cards and of their units."""
    return {address for item in items for address in (
        item.device.address, *itertools.chain(*item.region.units))}


def _limits() -> health.Limits:
    conf = CONF.nova_accel
    return health.Limits(
        {severity: most for severity, most in (
            (health.Severity.FATAL, conf.health_max_fatal_errors),
            (health.Severity.NONFATAL, conf.health_max_nonfatal_errors),
            (health.Severity.CORRECTABLE, conf.health_max_correctable_errors))
         if most >= 0},
        conf.health_check_link_width, conf.health_check_link_speed)
