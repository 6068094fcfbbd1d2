# SPDX-License-Identifier: Apache-2.0
"""Withholds the functions that were not cleaned since a server had them."""

import collections.abc
import threading

from nova_accel.core import held_devices
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.placement import inventory

_WHY = 'a server had it, and it was not cleaned since'
_FREE = 'openstack accel device set --free'

_DIRTY = model.Withheld(
    _WHY, f'nova-compute cleans it if its entry says clean; otherwise clean '
    f'it, and run "{_FREE}"', model.WithheldState.DIRTY)
_CLEANING = model.Withheld(
    'it is being cleaned after its last server', 'no action needed',
    model.WithheldState.CLEANING)

#: Rounds of the periodic tasks after which Nova has read the providers again
#: that were changed in Placement.
_ROUNDS = 2


#: Addresses of functions.
Functions = collections.abc.Collection[model.PciAddress]


class Dirt:
    """The dirty functions of a compute node.

    Placement has them; here is what it does not know yet.

    :param held: returns what domains hold
    :ivar is_known: whether Placement has told the dirty functions
    """

    def __init__(self, held: collections.abc.Callable[
            [], held_devices.Held] = dict) -> None:
        self._held = held
        self._node = inventory.Node('', '')
        #: In use, which Placement may not know.
        self._used: set[model.PciAddress] = set()
        #: In use, which Placement knows and Nova may not know: rounds left.
        self._stored: dict[model.PciAddress, int] = {}
        self._cleaned: set[model.PciAddress] = set()
        self._cleaning: set[model.PciAddress] = set()
        self._failed: dict[model.PciAddress, str] = {}
        #: Those that had failed when Placement was asked for requests: the
        #: time before, and the last time.
        self._failed_then: list[set[model.PciAddress]] = [set(), set()]
        self._lock = threading.Lock()
        self.is_known = False

    # Changes

    def update(self, node: inventory.Node) -> bool:
        """Take over the dirty functions that Placement knows.

        :returns: whether they have changed
        """
        with self._lock:
            before, self._node, self.is_known = self._node, node, True
            known = frozenset().union(*node.dirty.values())
            self._cleaned &= known
            self._used -= known
            self._stored = {address: rounds - 1 for address, rounds
                            in self._stored.items() if rounds > 1}
            dirty = {*self._functions(), *self._functions().values()}
            self._failed = {address: why for address, why
                            in self._failed.items() if address in dirty}
        return before.dirty != node.dirty

    def use(self, functions: collections.abc.Iterable[model.PciAddress],
            is_stored: bool = False) -> None:
        """Functions become dirty: a server gets them, for example.

        :param is_stored: whether Placement knows, since a moment ago
        """
        with self._lock:
            for address in functions:
                self._cleaned.discard(address)
                self._failed.pop(address, None)
                for failed in self._failed_then:
                    failed.discard(address)
                if is_stored:
                    self._stored[address] = _ROUNDS
                else:
                    self._used.add(address)

    def note_failures(self) -> None:
        """Note what has failed. Placement is then asked for requests."""
        with self._lock:
            self._failed_then = [self._failed_then[1], {*self._failed}]

    def begin(self, functions: Functions) -> bool:
        """Begin to clean functions.

        :returns: whether none of them is being cleaned already
        """
        with self._lock:
            is_free = self._cleaning.isdisjoint(functions)
            if is_free:
                self._cleaning.update(functions)
            return is_free

    def end(self, functions: Functions, failure: str | None) -> None:
        """The cleaning of functions has ended.

        :param failure: why they are not clean, '' if they are, None if a
            cleaner is still at work
        """
        with self._lock:
            self._cleaning.difference_update(functions)
            for address in functions:
                self._failed.pop(address, None)
                if failure:
                    self._failed[address] = failure
                elif failure == '':
                    self._used.discard(address)
                    self._stored.pop(address, None)
                    self._cleaned.add(address)

    # Reading

    def known_failures(self) -> frozenset[model.PciAddress]:
        """Return the failures of before an operator has asked for anything.

        What has failed since, the operator does not mean.
        """
        with self._lock:
            return frozenset(self._failed_then[0] & self._failed.keys())

    def __bool__(self) -> bool:
        """Whether any function is dirty."""
        with self._lock:
            return bool(self._functions())

    def in_placement(self, provider: str) -> frozenset[model.PciAddress]:
        """Return the functions of a provider that Placement has as dirty."""
        with self._lock:
            return self._node.dirty.get(provider, frozenset()) - self._cleaned

    def cleaned(self) -> frozenset[model.PciAddress]:
        """Return the clean functions that Placement has as dirty."""
        with self._lock:
            return frozenset(self._cleaned)

    def unstored(self) -> frozenset[model.PciAddress]:
        """Return the dirty functions that Placement may not know."""
        with self._lock:
            return frozenset(self._used)

    def failures(self) -> frozenset[model.PciAddress]:
        """Return the functions whose cleaning failed."""
        with self._lock:
            return frozenset(self._failed)

    def among(self, functions: collections.abc.Iterable[model.Function],
              ) -> set[model.Address]:
        """Return those of all functions of the machine that are dirty.

        A function is dirty with its card. A card is dirty with its virtual
        functions if these are not there any more.
        """
        functions = list(functions)
        found = self.cleanable(functions)
        return {*found, *(function.address for function in functions
                          if function.physfn in found)}

    def cleanable(self, functions: collections.abc.Iterable[model.Function],
                  ) -> dict[model.Address, set[model.Address]]:
        """Return the functions to clean, and those that are clean then.

        The virtual functions of a card that are not there any more are clean
        when the card is.

        :param functions: all functions of the machine
        """
        with self._lock:
            dirty = self._functions()
        there = {function.address for function in functions} if dirty else ()
        found: dict[model.Address, set[model.Address]] = {}
        for address, card in dirty.items():
            place = address if address in there else card
            if place and place in there:
                found.setdefault(place, {place}).add(address)
        return found

    def withheld(self, functions: collections.abc.Iterable[model.Function],
                 ) -> dict[model.Address, model.Withheld]:
        """Return the dirty functions that no server holds, with reasons."""
        dirty = self.among(functions)
        if not dirty:
            return {}
        held = {device.address
                for _uuid, device in held_devices.each(self._held())}
        with self._lock:
            return {address: self._why(address) for address in dirty - held}

    def _why(self, address) -> model.Withheld:
        """Return why a dirty function is withheld. The caller locks."""
        if address in self._cleaning:
            return _CLEANING
        if failure := self._failed.get(address):
            return model.Withheld(
                f'it could not be cleaned after its last server: {failure}',
                'repair the cause, and run "openstack accel device set '
                '--clean"', model.WithheldState.CLEANING_FAILED)
        return _DIRTY

    def _functions(self) -> dict[model.PciAddress, model.PciAddress | None]:
        """Return the dirty functions, each with its card if it is known.

        The caller locks.
        """
        found = {address: _card(self._node.ours.get(uuid, ''))
                 for uuid, functions in self._node.dirty.items()
                 for address in functions}
        return {address: found.get(address)
                for address in {*found, *self._used, *self._stored}
                if address not in self._cleaned}


def _card(provider: str) -> model.PciAddress | None:
    """Return the card of a provider, by its name."""
    try:
        return model.PciAddress.parse(naming.parse_provider_name(provider)[0])
    except ValueError:
        return None
