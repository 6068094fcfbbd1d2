# SPDX-License-Identifier: Apache-2.0
"""Cleans the devices that a server has left, before another one gets them.

A dirty unit is cleaned when no server holds it and its reset has succeeded.
Until the verification has succeeded, it stays dirty in Placement: an end of
nova-compute or of the host at any moment only leads to another cleaning.
"""

import collections.abc

import nova.conf
from oslo_log import log as logging

from nova_accel import conf
from nova_accel.compute.state import node_state
from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core.assignment import holders
from nova_accel.core.device_spec import cleaner as cleaners
from nova_accel.core.placement import inventory
from nova_accel.host import background
from nova_accel.host import commands
from nova_accel.host import loader
from nova_accel.host import operate

LOG = logging.getLogger(__name__)

CONF = nova.conf.CONF


class Cleaning:
    """Cleans the devices of this host, each in a thread."""

    def __init__(self, state: node_state.NodeState) -> None:
        self._local_host = state.local_host
        self._dirt = state.local_host.dirt
        self._resets = state.local_host.resets
        self._claims = state.claims
        # Units whose earlier cleaner has left a process; each is logged once.
        self._waiting: set[model.Unit] = set()

    def take_requests(self, here: inventory.NodeInventory) -> None:
        """Do what an operator asks for: clean devices, or free them.

        :param here: what the compute node offers
        """
        node = here.node
        if not (node.to_clean or node.to_free):
            return
        in_use = self._claims.addresses_in_use()
        for uuid in node.to_free & node.dirty.keys():
            freed = node.dirty[uuid] - in_use
            if (item := here.by_uuid.get(uuid)) and item.region.cleaner:
                # A server may have left the others since they were cleaned.
                freed &= self._dirt.known_failures() | (
                    freed - self._cleanable(item, here.host))
            LOG.info('Resource provider %s: an operator has freed %s',
                     node.ours.get(uuid, uuid),
                     ', '.join(map(str, sorted(freed)))
                     or 'nothing, as servers have its devices, or '
                     'nova-compute is about to clean them')
            self._dirt.end(freed, '')
            self._resets.used(freed)
        for uuid in node.to_clean:
            item = here.by_uuid.get(uuid)
            if item and item.region.cleaner:
                self._dirt.use(item.functions - in_use)
            else:
                LOG.warning('Resource provider %s: an operator asks to clean '
                            'it, but no entry names a cleaner for it',
                            node.ours[uuid])

    def _cleanable(self, item, host) -> set[model.Address]:
        """Return the dirty functions that the cleaner of a Region cleans.

        A card that a server had as a whole is not cleaned by its virtual
        functions.
        """
        return set().union(*(
            functions for place, functions
            in self._dirt.cleanable(host.functions).items()
            if place in item.functions))

    def start(self, node: inventory.Node, known: holders.Holders) -> bool:
        """Start to clean the dirty units that no server holds.

        :param known: who holds devices
        :returns: whether any was started, so that the Host changes
        """
        if not self._dirt:
            return False
        # With the units that are withheld.
        here = inventory.NodeInventory(
            self._local_host.read_ignoring_reset_failures(), node)
        dirty = self._dirt.cleanable(here.host.functions)
        there = {function.address: function
                 for function in here.host.functions}
        held = self._claims.addresses_in_use() | known.lacked(here.offered)
        unfit = self._dirt.failures().union(
            *self._resets.due(here.host, held, 0),
            self._local_host.health.withheld(here.host.functions))
        return any([
            self._start(item, unit, _places(item, unit, there), set().union(
                *(dirty.get(address, {address}) for address in unit)))
            for item in here.offered if item.region.cleaner
            for unit in _together(item) if not dirty.keys().isdisjoint(unit)
            and held.isdisjoint(unit) and unfit.isdisjoint(unit)])

    def _start(self, item, unit, places, functions) -> bool:
        """Start to clean a unit, and return whether that was possible.

        :param places: as of :func:`_places`
        :param functions: those that are clean then
        """
        if not self._dirt.begin(functions):
            return False
        try:
            background.Runner().start(
                lambda: self._clean(item, unit, places, functions))
        except RuntimeError as error:
            LOG.warning('Could not start to clean device %s: %s', unit[0],
                        error)
            self._dirt.end(functions, None)
            return False
        return True

    def _clean(self, item, unit, places, functions) -> None:
        failure = None
        try:
            with self._claims.set_aside(unit, is_short=False) as is_free:
                if is_free:
                    if unit not in self._waiting:
                        LOG.info('Cleaning device %s with cleaner %s', unit[0],
                                 item.region.cleaner)
                    try:
                        failure = self._run(item, places)
                    finally:
                        # Cleaners leave traces of their own in registers.
                        self._resets.used(unit)
            self._waiting.discard(unit)
        except BlockingIOError:
            if unit not in self._waiting:
                LOG.info('Device %s is cleaned later: a process of an earlier '
                         'cleaner still exists', unit[0])
            self._waiting.add(unit)
        except Exception as error:
            # '' would tell that the device is clean.
            failure = str(error) or repr(error)
        finally:
            self._dirt.end(functions, failure)
            self._local_host.invalidate()
        if failure:
            LOG.warning('Device %s was not cleaned, and no server gets it: %s',
                        unit[0], failure)
        elif failure == '':
            LOG.info('Device %s is clean', unit[0])

    def _run(self, item, places) -> str:
        """Run the cleaner of a Region; return what went wrong, or ''."""
        cleaner = conf.policy(CONF).cleaners.get(item.region.cleaner)
        if not cleaner:
            raise errors.AssignmentError(
                f'cleaner {item.region.cleaner}', 'is not defined any more')
        if programmer := self._local_host.programmers().get(item.region.kind):
            programmer.forget(item)
        for address, region in places:
            step, code, output = operate.on(self._local_host.tree).clean(
                cleaner.text, str(address), region)
            if step:
                return f'{step} {address}: ' + commands.describe(
                    getattr(cleaner, step)[0], code, output, cleaner.timeout)
        return ''


def _together(item) -> collections.abc.Iterable[model.Unit]:
    """Return the functions of a Region that are cleaned together.

    All functions of an FPGA region lead to the same logic.
    """
    if loader.load()[item.region.kind].programs:
        return [tuple(sorted(item.functions))]
    return dict.fromkeys(item.region.units)


def _places(item, unit, functions) -> list[tuple[model.Address, str]]:
    """Return the addresses of what is cleaned, each with its region's number.

    :param functions: all functions of the machine by address
    """
    if loader.load()[item.region.kind].programs:
        number = item.region.variant.removeprefix('region') or '0'
        return [(card, number) for card in _cards(item, unit, functions)]
    return [(device.address, '0') for device
            in cleaners.devices(map(functions.__getitem__, unit))]


def _cards(item, unit, functions) -> list[model.PciAddress]:
    """Return the cards of functions: one of each slot.

    An IOMMU group can have several cards. Another function of a card can
    manage it.
    """
    cards = {card.position: card for card in sorted(
        (functions[address].physfn or address for address in unit),
        reverse=True)}
    cards[item.device.address.position] = item.device.address
    return sorted(cards.values())
