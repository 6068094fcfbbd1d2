# SPDX-License-Identifier: Apache-2.0
"""Devices with one_time_use in Nova's provider tree."""

from nova.compute import provider_tree
import pytest

from nova_accel.compute.reporting import tree_update
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.assignment import holders
from nova_accel.core.placement import dirt
from nova_accel.core.placement import providers
from tests.unit import build

_ONCE = {'vendor_id': '10de', 'resource_class': 'CUSTOM_X',
         'one_time_use': 'yes'}
_UNHEALTHY = providers.WITHHELD[model.WithheldState.UNHEALTHY]
_FIRST, _SECOND = '0000:81:00.0', '0000:82:00.0'


class _Node:
    """A compute node with two GPUs that have one_time_use."""

    def __init__(self):
        self.gpus = {at: build.function(at) for at in (_FIRST, _SECOND)}
        self.entry = dict(_ONCE)
        self.held = set()
        self._tree = provider_tree.ProviderTree()
        self._tree.new_root('host1', build.ROOT)

    def report(self, failed=()):
        host = build.offer(
            list(self.gpus.values()), build.entries(self.entry), withheld={
                build.address(at): [model.Withheld('its reset failed')]
                for at in failed})
        held = {build.address(at) for at in self.held}
        tree_update.update(
            self._tree, build.inventory(
                host, root=self._tree.data('host1').uuid),
            self._allocated, holders.Holders({'server': tuple(
                hostdev.Hostdev(address, '') for address in held)}))

    def _allocated(self, uuid):
        name = self._tree.data(uuid).name
        return {'CUSTOM_UNIT_OF_CUSTOM_X': 1} if any(
            at in name for at in self.held) else {}

    def _uuid(self, at):
        return naming.provider_uuid(build.ROOT, build.address(at))

    def traits(self, at):
        return self._tree.data(self._uuid(at)).traits

    def reserved(self, at):
        """Return reserved and total units, or None without a provider."""
        if not self._tree.exists(self._uuid(at)):
            return None
        [record] = self._tree.data(self._uuid(at)).inventory.values()
        return record['reserved'], record['total']

    def left(self):
        """Return the number of units of the class that can be allocated."""
        [record] = self._tree.data('host1_accel_CUSTOM_X').inventory.values()
        return record['total'] - record['reserved'] - len(self.held)

    def free(self, at):
        """Set reserved to 0, as an operator does after wiping the device."""
        inventory = self._tree.data(self._uuid(at)).inventory
        self._tree.update_inventory(self._uuid(at), {
            name: {**record, 'reserved': 0}
            for name, record in inventory.items()})


@pytest.fixture
def node():
    node = _Node()
    node.report()
    assert (node.reserved(_FIRST), node.left()) == ((0, 1), 2)
    return node


def _use(node):
    node.held = {_FIRST}
    node.report()
    node.held.clear()
    node.report()


def test_reserved_from_first_server_until_operator_frees_it(node):
    node.held = {_FIRST}
    for _round in range(2):
        node.report()
        assert (node.reserved(_FIRST), node.left()) == ((1, 1), 1)
    # If the operator frees it while its server has it, it is reserved again.
    node.free(_FIRST)
    node.report()
    assert node.reserved(_FIRST) == (1, 1)
    node.held.clear()
    for _round in range(2):
        node.report()
        assert (node.reserved(_FIRST), node.left()) == ((1, 1), 1)
        assert node.reserved(_SECOND) == (0, 1)
    node.free(_FIRST)
    node.report()
    assert (node.reserved(_FIRST), node.left()) == ((0, 1), 2)


@pytest.mark.parametrize('entry', [
    {'one_time_use': 'no'}, {'resource_class': 'CUSTOM_Y'},
    {'product_id': 'ffff'}])
def test_reset_or_changed_entry_keeps_reservation(node, entry):
    _use(node)
    node.report(failed=[_FIRST])
    assert _UNHEALTHY in node.traits(_FIRST)
    node.report()
    assert _UNHEALTHY not in node.traits(_FIRST)
    node.entry |= entry
    node.report()
    node.entry = dict(_ONCE)
    node.report()
    assert node.reserved(_FIRST) == (1, 1)
    assert node.reserved(_SECOND) == (0, 1)


def test_reasons_are_a_set_of_which_each_ends_alone(node):
    _use(node)
    node.report(failed=[_FIRST])
    assert node.traits(_FIRST) >= {_UNHEALTHY, dirt.TRAIT}
    node.free(_FIRST)
    node.report(failed=[_FIRST])
    # The operator has freed it, and it is still withheld.
    assert dirt.TRAIT not in node.traits(_FIRST)
    assert node.reserved(_FIRST) == (1, 1)
    node.report()
    assert node.reserved(_FIRST) == (0, 1)


def test_withheld_device_does_not_stay_reserved(node):
    node.report()
    for _round in range(2):
        node.report(failed=[_SECOND])
        assert node.reserved(_SECOND) == (1, 1)
    node.report()
    assert node.reserved(_SECOND) == (0, 1)


def test_missing_device_stays_reserved_until_operator_frees_it(node):
    _use(node)
    gone = node.gpus.pop(_FIRST)
    node.report()
    assert node.reserved(_FIRST) == (1, 1)
    node.gpus[_FIRST] = gone
    node.report()
    assert node.reserved(_FIRST) == (1, 1)
    del node.gpus[_FIRST]
    node.report()
    node.free(_FIRST)
    node.report()
    assert node.reserved(_FIRST) is None
