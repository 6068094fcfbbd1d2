# SPDX-License-Identifier: Apache-2.0
"""Entries for a machine that has none, each tried before it is suggested.

What is suggested is offered as it stands: nothing that it names is refused,
and the console of the host is no part of it.
"""

import collections.abc
import dataclasses
import itertools
import json
import typing

from nova_accel.core import kind as kinds
from nova_accel.core import model
from nova_accel.core.device_spec import discovery

#: PCI Code and ID Assignment Specification: base class and subclass of what
#: is suggested though no kind knows more of it.
ACCELERATORS = {
    0x0300: 'VGA controller', 0x0302: '3D controller',
    0x0380: 'display controller', 0x0b40: 'co-processor',
    0x1000: 'network encryption', 0x1080: 'encryption',
    0x1200: 'processing accelerator',
}

#: An entry, as JSON.
Item = collections.abc.Mapping[str, typing.Any]

#: What a machine offers with some entries.
Decide = collections.abc.Callable[[collections.abc.Sequence[Item]], model.Host]


@dataclasses.dataclass(frozen=True)
class Suggestion:
    """An entry of which everything is offered.

    :param units: how many it offers, by resource class
    :param others: entries that would be offered in its place, of other types
    :param is_shared: whether virtual functions of a card can have several
        types, so that its units are maybe not all there at the same time
    """

    item: Item
    units: collections.abc.Mapping[str, int]
    others: tuple[Item, ...] = ()
    is_shared: bool = False


@dataclasses.dataclass(frozen=True)
class Suggestions:
    """What there could be in ``device_spec``.

    :param refusals: accelerators that no entry would offer
    """

    entries: tuple[Suggestion, ...] = ()
    refusals: tuple[model.Refusal, ...] = ()


def suggest(functions: collections.abc.Iterable[model.Function],
            enumerators: collections.abc.Iterable[kinds.Enumerator],
            decide: Decide) -> Suggestions:
    """Suggest entries.

    :param functions: all of the machine
    :param enumerators: kinds opened on it
    """
    search = _Search(functions, enumerators, decide)
    search.run()
    return search.result()


@dataclasses.dataclass(frozen=True)
class _Trial:
    """What would come of an entry, beside those that were found before.

    :param said: what the entry says beside where it is
    :param units: how many more there would be of each resource class
    :param objections: by function
    """

    said: Item
    item: Item
    host: model.Host
    units: collections.abc.Mapping[str, int]
    objections: collections.abc.Mapping[model.Address, model.Refusal]

    @property
    def is_good(self) -> bool:
        return bool(self.units) and not self.objections


class _Search:
    def __init__(self, functions, enumerators, decide):
        self._functions = {function.address: function
                           for function in functions}
        self._decide = decide
        self._host = decide([])
        self._found: list[Suggestion] = []
        self._refused: dict[model.Address, model.Refusal] = {}
        suggesters = [enumerator for enumerator in enumerators
                      if isinstance(enumerator, kinds.Suggester)]
        #: What kinds know of each function.
        self._known = {address: [item for suggester in suggesters
                                 for item in suggester.suggest(function)]
                       for address, function in self._functions.items()}

    def run(self) -> None:
        """Go by ids; where not all that have them will do, card by card."""
        for alike in _groups(filter(self._is_meant, self._functions.values()),
                             _ids):
            trials = [self._try(_ids_item(alike[0]), said)
                      for said in self._sayings(alike)]
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

    def _is_meant(self, function) -> bool:
        return bool(self._known[function.address]
                    or function.class_code >> 8 in ACCELERATORS)

    def _sayings(self, functions) -> list[Item]:
        """What entries for functions can say: a type, or nothing more."""
        known = [item for function in functions
                 for item in self._known[function.address]]
        return [*{json.dumps(item): item for item in known}.values()] or [{}]

    def _try(self, place, said) -> _Trial:
        item = {**place, **said}
        host = self._decide([*(found.item for found in self._found), item])
        return _Trial(said, item, host, host.units - self._host.units,
                      self._objections(host))

    def _objections(self, host) -> dict[model.Address, model.Refusal]:
        found = {refusal.address: refusal for refusal in host.refusals}
        for address in _offered(host):
            function = self._functions[address]
            if function.console:
                found[address] = model.Refusal(address, function.ids,
                                               discovery.CONSOLE)
        return found

    def _add_card(self, card, trials) -> None:
        """Suggest an entry for a card of several that have its ids.

        :param trials: with all of these
        """
        own = {function.address for function in card}
        sayings = self._sayings(card)
        if len(sayings) > 1:
            # There can be many types, and many cards.
            sayings = [trial.said for trial in trials
                       if trial.said in sayings
                       and not own & trial.objections.keys()]
        for place in _card_items(card):
            for index, said in enumerate(sayings):
                trial = self._try(place, said)
                if trial.is_good:
                    self._add(trial, card, [
                        {**place, **other} for other in sayings[index + 1:]])
                    return
                self._refused.update(trial.objections)

    def _add(self, trial, functions, others) -> None:
        self._found.append(Suggestion(
            trial.item, trial.units, tuple(others), bool(others) and any(
                function.physfn for function in functions)))
        self._host = trial.host


def _offered(host) -> collections.abc.Iterator[model.Address]:
    return (address for device in host.devices for region in device.regions
            for unit in region.units for address in unit)


def _groups(functions, key) -> list[list[model.Function]]:
    return [list(group) for _key, group in itertools.groupby(
        sorted(functions, key=key), key)]


def _ids(function):
    if isinstance(function.address, model.ParentName):
        return function.address.name
    return function.ids


def _card(function):
    return function.physfn or function.address


def _ids_item(function) -> Item:
    if isinstance(function.address, model.ParentName):
        return {'parent': function.address.name}
    return {'vendor_id': function.vendor_id,
            'product_id': function.product_id}


def _card_items(functions) -> collections.abc.Iterator[Item]:
    """A card by its address; one without virtual functions also by its slot.
    """
    first = functions[0]
    address = _card(first)
    if isinstance(address, model.ParentName):
        return
    yield {**_ids_item(first), 'address': str(address)}
    if not (first.physfn or first.num_vfs):
        # A GPU, say, goes together with its sound.
        yield {'vendor_id': first.vendor_id,
               'address': f'{str(address).partition(".")[0]}.*'}
