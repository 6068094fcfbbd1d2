# SPDX-License-Identifier: Apache-2.0
"""Partitions of servers that fmpm and its stand-in cannot have."""

import types
from unittest import mock

import pytest

from nova_accel.compute.devices import fabric_partitions
from nova_accel.core import hostdev
from nova_accel.core.fabric import located
from nova_accel.core.fabric import manager
from tests.unit import build

_CARD, _OTHER = '0000:41:00.0', '0000:51:00.0'
_FUNCTIONS = (*build.card(_CARD, 2, '10de:2330', '10de:2330'),
              build.function(_OTHER))


def _partitions(found, held):
    """Return the partitions of a host, and the manager's Fabric.

    :param held: the address that each server has
    """
    fabric = mock.Mock()
    host = build.host(_FUNCTIONS)
    state = mock.Mock()
    state.local_host = types.SimpleNamespace(
        read_cached=lambda: host, fabric_manager=lambda: '{}',
        switches=types.SimpleNamespace(
            ask=lambda: None, locate=lambda _functions: found, fabric=fabric))
    state.claims.by_server.return_value = [
        (server, _hostdevs(address)) for server, address in held.items()]
    return fabric_partitions.FabricPartitions(state), fabric


def _hostdevs(address):
    return (hostdev.Hostdev(build.address(address), ''),)


def _found(**more):
    return located.Located(
        (manager.Partition(7, (manager.Member(1),), True),),
        {1: build.address(_CARD)}, {7: frozenset({_CARD})}, **more)


def test_active_partition_is_not_shared():
    first, second = (f'0000:41:00.{number}' for number in (1, 2))
    partitions, fabric = _partitions(_found(), {'one': first, 'two': second})
    with pytest.raises(manager.FabricError, match='another server') as caught:
        partitions.activate('two', _hostdevs(second))
    assert caught.value.failure is manager.Failure.IN_USE
    fabric.activate.assert_not_called()
    partitions, _fabric = _partitions(_found(), {'two': second})
    partitions.activate('two', _hostdevs(second))


def test_problems_of_the_fabric_do_not_concern_other_gpus():
    partitions, fabric = _partitions(
        _found(problems=('links have failed',)), {'one': _OTHER})
    partitions.activate('one', _hostdevs(_OTHER))
    fabric.activate.assert_not_called()
