# SPDX-License-Identifier: Apache-2.0
"""Who holds the devices of a compute node, servers without a domain too."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_accel.core import claim
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.assignment import holders
from tests.unit import build

_ME = '00000000-0000-0000-0000-000000000001'
_OTHER = '00000000-0000-0000-0000-000000000002'
_UNIT = 'CUSTOM_UNIT_OF_CUSTOM_GPU'


def _vfs(count):
    """The Region of a card's VFs, and their addresses."""
    host = build.host(build.card('0000:85:00.0', count), {
        'product_id': '37c9', 'resource_class': 'CUSTOM_GPU'})
    [item] = build.inventory(host, 'node').offered
    return item, [unit[0] for unit in item.region.units]


def _kept(left, allocated, hostdevs, offered):
    return holders.Holders({_ME: hostdevs}, {_ME: allocated}).kept(left,
                                                                 offered)


@given(left=st.integers(0, 4), held=st.integers(0, 3),
       server=st.integers(0, 3), migration=st.integers(0, 3))
def test_as_many_are_kept_as_are_allocated_and_not_held(
        left, held, server, migration):
    item, addresses = _vfs(7)
    hostdevs = tuple(
        hostdev.Hostdev(address, naming.alias('ACCEL0', item.uuid, number))
        for number, address in enumerate(addresses[4:4 + held]))
    allocated = [{item.uuid: {_UNIT: amount}}
                 for amount in (server, migration)]
    kept = _kept(addresses[:left], allocated, hostdevs, (item,))
    assert kept <= set(addresses[:left])
    assert len(kept) == min(left, max(0, server + migration - held))


def test_device_of_no_region_is_not_kept():
    item, _addresses = _vfs(1)
    assert not _kept([build.address('0000:01:00.0')],
                     [{item.uuid: {_UNIT: 2}}], (), (item,))


def test_only_mdevs_of_the_server_are_kept():
    function = build.function('0000:81:00.0', '10de:20b0', mdev_types=(
        model.MdevType('nvidia-471', 4, ()),))
    host = build.host([function], {
        'vendor_id': '10de', 'mdev_type': 'nvidia-471'})
    [item] = build.inventory(host, 'node').offered
    mine, another = (model.MdevAddress(naming.mdev_uuid(
        server, item.uuid, 0)) for server in (_ME, _OTHER))
    assert _kept([another, mine], [{item.uuid: {'CUSTOM_UNIT_OF_VGPU': 2}}],
                 (), (item,)) == {mine}


@given(held=st.integers(0, 3), allocated=st.integers(0, 5))
def test_units_without_a_domain_count_as_held(held, allocated):
    item, addresses = _vfs(4)
    hostdevs = tuple(
        hostdev.Hostdev(address, naming.alias('ACCEL0', item.uuid, number))
        for number, address in enumerate(addresses[:held]))
    known = holders.Holders({_ME: hostdevs},
                            {_ME: [{item.uuid: {_UNIT: allocated}}]})
    assert known.counts((item,)) == {item.uuid: min(4, max(held, allocated))}
    assert bool(known.lacked((item,))) == (allocated > held)


def test_everything_is_kept_while_nova_or_placement_does_not_answer():
    item, addresses = _vfs(2)
    assert holders.Holders(is_known=False).kept(
        addresses, (item,)) == set(addresses)


@pytest.mark.parametrize('allocated, here, is_justified', [
    ([{_OTHER: {}}], (), True),
    # It was resized on this host: the migration has its old allocations.
    ([{_ME: {}}, {_OTHER: {}}], (), True),
    # The resize was confirmed, or it failed.
    ([{}, {_ME: {}}], (_ME,), False),
    # Nova lost its allocations.
    ([{}], (_ME,), True),
    # It was deleted.
    ([{}], (), False),
])
def test_claim_is_kept_while_allocations_justify_it(allocated, here,
                                                    is_justified):
    known = holders.Holders({}, {_ME: allocated}, frozenset(here))
    claimed = claim.Claim(_ME, (hostdev.Hostdev(
        build.address('0000:01:00.0'), naming.alias('ACCEL0', _OTHER, 0)),))
    assert is_justified == known.justifies(_ME, claimed)


@given(st.lists(st.sampled_from([
    build.address('0000:01:00.0'), model.MdevAddress(_OTHER)])),
    st.booleans())
def test_kept_claim_is_read_as_it_was_written(addresses, managed):
    written = claim.Claim(_ME, tuple(
        hostdev.Hostdev(address, naming.alias('ACCEL0', _OTHER, number),
                        managed)
        for number, address in enumerate(addresses)), kept=True)
    assert claim.loads(claim.dumps(written)) == written


@pytest.mark.parametrize('text', [
    '', '{}', '[]', '{"version": 2}', '{"version": 1, "server": "x"}',
    '{"version": 1, "server": "x", "hostdevs": [{"address": "a:b"}]}'])
def test_damaged_claim_is_an_error(text):
    with pytest.raises(ValueError):
        claim.loads(text)
