# SPDX-License-Identifier: Apache-2.0
"""Check the health of devices, each card in a thread of its own."""

import collections
import collections.abc
import itertools
import threading
import time

from oslo_config import cfg

from nova_accel.core import health
from nova_accel.core import kind
from nova_accel.core import model
from nova_accel.host import background
from nova_accel.host import health as sysfs
from nova_accel.host import tree as trees

_BLOCKED = ('its health is unknown: it cannot be read in time, as while the '
            'kernel resets a device')
_REMEDY = ('look for it in the kernel log; servers that hold it keep it, and '
           'it is offered again when this is over (see the options health_* '
           'in [nova_accel])')
_UNREAD = model.Withheld(
    'its health is unknown: nova-compute has not read it yet',
    'it is read in the next run of the periodic tasks',
    model.WithheldState.UNHEALTHY)

#: What is wrong with each function that was read, '' for nothing.
Problems = dict[model.Address, str]

#: Kinds opened on a machine, by name.
Kinds = collections.abc.Mapping[str, kind.Enumerator]


def limits(options: cfg.ConfigOpts.GroupAttr) -> health.Limits:
    """Return what a healthy function may have, by ``[nova_accel]``."""
    return health.Limits(
        {severity: most for severity, most in (
            (health.Severity.FATAL, options.health_max_fatal_errors),
            (health.Severity.NONFATAL, options.health_max_nonfatal_errors),
            (health.Severity.CORRECTABLE,
             options.health_max_correctable_errors))
         if most >= 0},
        options.health_check_link_width, options.health_check_link_speed)


def withheld(problems: Problems,
             functions: collections.abc.Iterable[model.Function],
             ) -> dict[model.Address, model.Withheld]:
    """Return the functions with problems, with reason and remedy.

    Those that were not read are among them.
    """
    found = {}
    for function in functions:
        problem = problems.get(function.address)
        if problem is None:
            found[function.address] = _UNREAD
        elif problem:
            found[function.address] = model.Withheld(
                problem, _REMEDY, model.WithheldState.UNHEALTHY)
    return found


def unknown(addresses: collections.abc.Iterable[model.Address]) -> Problems:
    """Return the problem of functions that cannot be read in time."""
    return dict.fromkeys(addresses, _BLOCKED)


def addresses(regions: collections.abc.Iterable[tuple[model.Device,
                                                      model.Region]],
              ) -> set[model.Address]:
    """Return the addresses of cards and of their units."""
    return {address for device, region in regions for address in (
        device.address, *itertools.chain(*region.units))}


class Checks:
    """What is wrong with the devices of this host, as it was read last.

    Each card is read in a thread of its own, since a reset that hangs blocks
    the reading.

    Counters are compared with those of the first reading, except for functions
    that are suspected: all their errors count.

    :ivar failures: why cards could not be read, or not by a kind
    """

    def __init__(self) -> None:
        self._cards: dict[model.Address, _Card] = {}
        self.failures: list[str] = []

    def read(self, tree: trees.Tree,
             functions: collections.abc.Sequence[model.Function],
             named: collections.abc.Set[model.Address], kinds: Kinds,
             may_have: health.Limits,
             suspected: collections.abc.Container[model.Address] = (),
             ) -> Problems:
        """Read devices, :data:`background.WAIT` seconds at most.

        :param functions: all functions of the tree
        :param named: those to read
        :param kinds: opened on the tree
        :param may_have: what a healthy function may have
        :param suspected: functions that are not compared with the first look
        """
        look = _Look(tree, functions, kinds, may_have, suspected)
        self._forget_missing(functions)
        of_cards = collections.defaultdict(list)
        for function in functions:
            if function.address in named:
                of_cards[_card_of(function)].append(function)
        cards = [self._cards.setdefault(address, _Card(address))
                 for address in of_cards]
        background.wait([thread for card, own in zip(
            cards, of_cards.values(), strict=True)
            if (thread := card.start(look, own))])
        for card in cards:
            card.end()
        self.failures = [failure for card in cards
                         for failure in card.failures]
        return {address: problem for card in self._cards.values()
                for address, problem in card.problems.items()}

    def _forget_missing(
            self, functions: collections.abc.Iterable[model.Function]) -> None:
        """Forget functions and cards that do not exist any more.

        A card whose reader still runs may come back: it gets no other reader.
        """
        existing = {function.address for function in functions}
        cards = {_card_of(function) for function in functions}
        self._cards = {address: card for address, card in self._cards.items()
                       if address in cards or card.is_busy()}
        for card in self._cards.values():
            card.keep_only(existing)


class _Look:
    """One look at the functions of cards, which can be read in parallel."""

    def __init__(self, tree: trees.Tree,
                 functions: collections.abc.Iterable[model.Function],
                 kinds: Kinds, may_have: health.Limits,
                 suspected: collections.abc.Container[model.Address]) -> None:
        self._tree = tree
        self._limits = may_have
        self._vfs = collections.Counter[model.Address | None](
            function.physfn for function in functions)
        self._suspected = suspected
        self._examiners = {name: opened for name, opened in kinds.items()
                           if isinstance(opened, kind.Examiner)}

    def at(self, function: model.Function,
           histories: dict[model.Address, health.History],
           failures: list[str]) -> str:
        """Return what is wrong with a function, or ''.

        :param histories: of its card; gets the present errors
        :param failures: gets a text for each kind that cannot tell
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

    def __init__(self, address: model.Address) -> None:
        self._address = address
        self._reader = background.Runner()
        self._histories: dict[model.Address, health.History] = {}
        self._found: Problems = {}
        self._result: list[tuple[Problems, list[str]]] = []
        self.failures: list[str] = []

    def is_busy(self) -> bool:
        """Whether its reader still runs."""
        return self._reader.is_busy()

    def keep_only(self, existing: collections.abc.Set[model.Address],
                  ) -> None:
        """Forget the functions that do not exist any more."""
        if not self.is_busy():
            for address in self._histories.keys() - existing:
                del self._histories[address]
            for address in self._found.keys() - existing:
                del self._found[address]

    def start(self, look: _Look,
              functions: collections.abc.Sequence[model.Function],
              ) -> threading.Thread | None:
        """Start to read functions, unless the last reader still runs.

        :returns: the thread that reads
        """
        # What the last reader finds if it still runs is old: ignore it.
        self._result = result = []

        def read() -> None:
            failures: list[str] = []
            result.append(({function.address: look.at(
                function, self._histories, failures)
                for function in functions}, failures))

        try:
            return self._reader.start(read)
        except RuntimeError as error:
            self.failures = [f'Cannot read the health of {self._address}: '
                             f'{error}']
            return None

    def end(self) -> None:
        """Take over what the reader has found, if it has ended."""
        for found, failures in self._result:
            self._found.update(found)
            self.failures = failures

    @property
    def problems(self) -> Problems:
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


def _card_of(function: model.Function) -> model.Address:
    return function.physfn or function.address


def _examine(function: model.Function,
             examiners: collections.abc.Mapping[str, kind.Examiner],
             failures: list[str]) -> collections.abc.Iterator[str]:
    """Yield what kinds find wrong with a function.

    :param failures: gets a text for each kind that cannot tell
    """
    for name, examiner in examiners.items():
        try:
            yield from examiner.examine(function)
        except Exception as error:
            failures.append(f'Kind {name} cannot examine {function.address}: '
                            f'{error!r}')
