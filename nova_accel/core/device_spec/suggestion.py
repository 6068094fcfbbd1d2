# SPDX-License-Identifier: Apache-2.0
"""Suggest ``device_spec`` entries for the devices of a machine.

Each entry is tried before it is suggested: all devices that it names are
offered, and the console of the host is not among them.
"""

import collections.abc
import dataclasses
import itertools
import json
import typing

from nova_accel.core import kind as kinds
from nova_accel.core import model
from nova_accel.core import pci_class
from nova_accel.core.device_spec import together
from nova_accel.core.device_spec import unit_checks

Functions = collections.abc.Iterable[model.Function]

#: An entry, as JSON.
Item = collections.abc.Mapping[str, typing.Any]

#: Returns the Host that a machine offers with these entries.
Decide = collections.abc.Callable[[collections.abc.Sequence[Item]], model.Host]


@dataclasses.dataclass(frozen=True)
class Suggestion:
    """An entry whose devices are all offered.

    :param units: number of units that it offers, by resource class
    :param others: entries of other types that could be used instead
    :param is_shared: whether virtual functions of a card can have several
        types, so that not all units may be available at the same time
    """

    item: Item
    units: collections.abc.Mapping[str, int]
    others: tuple[Item, ...] = ()
    is_shared: bool = False


@dataclasses.dataclass(frozen=True)
class Suggestions:
    """The entries to suggest.

    :param refusals: accelerators that no entry can offer
    """

    entries: tuple[Suggestion, ...] = ()
    refusals: tuple[model.Refusal, ...] = ()


def suggest(functions: Functions,
            enumerators: collections.abc.Iterable[kinds.Enumerator],
            decide: Decide) -> Suggestions:
    """Suggest entries.

    :param functions: all functions of the machine
    :param enumerators: kinds opened on it
    :param decide: tries entries
    """
    search = _Search(functions, enumerators, decide)
    search.run()
    return search.result()


@dataclasses.dataclass(frozen=True)
class _Trial:
    """The result of an entry, in addition to those found before.

    :param keys: the keys of the entry without those of its address
    :param item: the entry
    :param units: the additional units by resource class
    :param objections: refusals by function
    """

    keys: Item
    item: Item
    host: model.Host
    units: collections.abc.Mapping[str, int]
    objections: collections.abc.Mapping[model.Address, model.Refusal]

    @property
    def is_good(self) -> bool:
        return bool(self.units) and not self.objections


class _Search:
    def __init__(self, functions: Functions,
                 enumerators: collections.abc.Iterable[kinds.Enumerator],
                 decide: Decide) -> None:
        self._functions = {function.address: function
                           for function in functions}
        self._decide = decide
        self._host = decide([])
        self._found: list[Suggestion] = []
        self._refused: dict[model.Address, model.Refusal] = {}
        suggesters = [enumerator for enumerator in enumerators
                      if isinstance(enumerator, kinds.Suggester)]
        #: Suggestions of the kinds by function.
        self._known = {address: [item for suggester in suggesters
                                 for item in suggester.suggest(function)]
                       for address, function in self._functions.items()}

    def run(self) -> None:
        """Try an entry for all devices with equal ids, then one per card."""
        for alike in _groups(filter(self._is_meant, self._functions.values()),
                             _ids):
            trials = [self._try(_ids_item(alike[0]), keys)
                      for keys in self._possible_keys(alike)]
            good = [trial for trial in trials if trial.is_good]
            if good:
                self._add(good[0], alike, [trial.item for trial in good[1:]])
                continue
            self._refused.update(trials[0].objections)
            for card in _groups(alike, _card):
                self._add_card(card, trials)

    def result(self) -> Suggestions:
        offered = {*_offered(self._host), *(
            device.address for device in self._host.devices)}
        return Suggestions(tuple(self._found), tuple(
            refusal for address, refusal in sorted(self._refused.items())
            if address not in offered
            and self._is_meant(self._functions[address])))

    def _is_meant(self, function: model.Function) -> bool:
        return bool(self._known[function.address]
                    or function.class_code >> 8 in pci_class.ACCELERATORS)

    def _possible_keys(self, functions: Functions) -> list[Item]:
        """Return the keys to try for functions: types, or no keys."""
        known = [item for function in functions
                 for item in self._known[function.address]]
        return [*{json.dumps(item): item for item in known}.values()] or [{}]

    def _try(self, place: Item, keys: Item) -> _Trial:
        item = {**place, **keys}
        host = self._decide([*(found.item for found in self._found), item])
        return _Trial(keys, item, host, host.units - self._host.units,
                      self._objections(host))

    def _objections(self, host: model.Host,
                    ) -> dict[model.Address, model.Refusal]:
        found = {refusal.address: refusal for refusal in host.refusals}
        for address in _offered(host):
            function = self._functions[address]
            if function.console:
                found[address] = model.Refusal(address, function.ids,
                                               unit_checks.CONSOLE)
        return found

    def _add_card(self, card: list[model.Function],
                  trials: list[_Trial]) -> None:
        """Suggest an entry for one of several cards with equal ids.

        :param trials: those of entries for all of the cards
        """
        own = {function.address for function in card}
        possible = self._possible_keys(card)
        if len(possible) > 1:
            # Each trial is slow, and there can be many types and cards.
            possible = [trial.keys for trial in trials
                        if trial.keys in possible
                        and not own & trial.objections.keys()]
        for place in _card_items(card):
            for index, keys in enumerate(possible):
                trial = self._try(place, keys)
                if trial.is_good:
                    self._add(trial, card, [
                        {**place, **other} for other in possible[index + 1:]])
                    return
                self._refused.update(trial.objections)

    def _add(self, trial: _Trial, functions: Functions,
             others: collections.abc.Sequence[Item]) -> None:
        self._found.append(Suggestion(
            trial.item, trial.units, tuple(others), bool(others) and any(
                function.physfn for function in functions)))
        self._host = trial.host


def _offered(host: model.Host) -> collections.abc.Iterator[model.Address]:
    return (address for device in host.devices for region in device.regions
            for unit in region.units for address in unit)


def _groups(functions: Functions,
            key: collections.abc.Callable[[model.Function], typing.Any],
            ) -> list[list[model.Function]]:
    return [list(group) for _key, group in itertools.groupby(
        sorted(functions, key=key), key)]


def _ids(function: model.Function) -> str:
    if isinstance(function.address, model.ParentName):
        return function.address.name
    return function.ids


def _card(function: model.Function) -> model.Address:
    return function.physfn or function.address


def _ids_item(function: model.Function) -> Item:
    if isinstance(function.address, model.ParentName):
        return {'parent': function.address.name}
    return {'vendor_id': function.vendor_id,
            'product_id': function.product_id}


def _card_items(functions: list[model.Function],
                ) -> collections.abc.Iterator[Item]:
    """Yield keys for a card: its address, without VFs also its slot."""
    first = functions[0]
    address = _card(first)
    if isinstance(address, model.ParentName):
        return
    yield {**_ids_item(first), 'address': str(address)}
    if not (first.physfn or first.num_vfs):
        # A GPU, for example, is assigned together with its audio function.
        slot = together.slot_item([first])
        yield slot
        yield {'address': slot['address']}
