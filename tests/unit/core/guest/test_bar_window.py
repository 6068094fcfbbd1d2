# SPDX-License-Identifier: Apache-2.0
"""Address space for large BARs; tests/firmware asks the firmware itself."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_accel.core import model
from nova_accel.core.guest import bar_window

_GIB, _MIB = bar_window.GIB, bar_window.MIB


def _bars(*sizes, **more):
    return [model.Bar(number, size, **more)
            for number, size in enumerate(sizes)]


#: As shown by lspci.
A100 = [model.Bar(0, 16 * _MIB, False, False), model.Bar(1, 64 * _GIB),
        model.Bar(3, 32 * _MIB)]
H100 = _bars(16 * _MIB, 128 * _GIB, 32 * _MIB)


@pytest.mark.parametrize('functions, needed', [
    ([], None),
    ([[]], None),
    ([_bars(16 * _GIB)], None),
    ([_bars(32 * _GIB)], None),
    ([A100], (64 * _GIB + 32 * _MIB, 41)),
    ([H100], (128 * _GIB + 48 * _MIB, 41)),
    # The small BARs take an aligned place that a large one could have had.
    ([H100] * 2, (384 * _GIB + 48 * _MIB, 42)),
    ([H100] * 8, (1920 * _GIB + 48 * _MIB, 44)),
    ([_bars(128 * _GIB)] * 8, (1024 * _GIB, 43)),
    ([A100] * 8, (960 * _GIB + 32 * _MIB, 43)),
    # The largest come first, whatever their order.
    ([_bars(_GIB), _bars(64 * _GIB), _bars(_GIB)], (66 * _GIB, 41)),
])
def test_window_follows_from_bars(functions, needed):
    found = bar_window.need(functions)
    assert (found and (found.window, found.least)) == needed


@pytest.mark.parametrize('more', [{'wide': False}, {'prefetchable': False}])
def test_bars_below_4_gib_are_not_counted(more):
    assert bar_window.need([_bars(64 * _GIB, **more)]) is None


def test_other_ports_get_room_if_the_host_has_enough_bits():
    needed = bar_window.need([H100] * 8)
    assert (needed.least, needed.roomy) == (44, 45)
    assert bar_window.choose(needed, 52) == 45
    assert bar_window.choose(needed, 44) == 44
    assert bar_window.choose(needed, 43) is None


def test_guest_gets_no_more_bits_than_firmware_uses():
    needed = bar_window.need([_bars(512 * _GIB, 64 * _MIB)] * 8)
    assert (needed.least, needed.roomy) == (46, 47)
    assert bar_window.choose(needed, 52) == 46
    assert bar_window.choose(bar_window.need([_bars(16 << 40)]), 52) is None


@pytest.mark.parametrize('count, least, roomy', [
    (224, 43, 43), (225, 43, 43), (256, 43, 43),
    (257, bar_window.NO_BITS, bar_window.NO_BITS)])
def test_no_width_is_enough_for_more_than_256_ports(
        count, least, roomy):
    needed = bar_window.need([_bars(4 * _GIB)] * count)
    assert (needed.least, needed.roomy) == (least, roomy)
    assert bar_window.choose(needed, 52) == (least if count < 257 else None)


@pytest.mark.parametrize('functions, memory, needs', [
    ([H100], 64 * _GIB, False),
    ([_bars(128 * _GIB)] * 6, 64 * _GIB, False),
    ([_bars(128 * _GIB)] * 7, 64 * _GIB, False),
    # 128 GiB of memory and the 4 GiB below it take two aligned places.
    ([_bars(128 * _GIB)] * 7, 128 * _GIB, True),
    ([H100] * 3, 64 * _GIB, False),
    ([H100] * 4, 64 * _GIB, True),
])
def test_seabios_needs_more_only_beyond_the_default_width(functions, memory,
                                                          needs):
    assert bool(bar_window.need(functions, memory, uefi=False)) is needs


def test_memory_below_the_window_adds_bits():
    found = [bar_window.need([H100], size << 40).least for size in (0, 6, 7)]
    assert found == [41, 43, 44]


_FUNCTION = st.lists(st.builds(
    model.Bar, st.integers(0, 5),
    st.integers(4, 44).map(lambda bit: 1 << bit), st.booleans(),
    st.booleans()), max_size=6)


# Also more functions than there are bus numbers.
_FUNCTIONS = st.builds(lambda some, times: some * times, st.lists(
    _FUNCTION, max_size=16), st.integers(1, 20))


@given(_FUNCTIONS, st.integers(0, 1 << 44), st.booleans())
def test_need_is_sufficient_and_grows_with_bars(functions, memory,
                                                uefi):
    needed = bar_window.need(functions, memory, uefi)
    counted = [bar.size for function in functions for bar in function
               if bar.wide and bar.prefetchable]
    if needed is None:
        assert sum(counted) <= (bar_window.SMALL_WINDOW if uefi else
                                1 << bar_window.DEFAULT_BITS)
        return
    assert sum(counted) <= needed.window <= 1 << needed.least - 3
    assert bar_window.MIN_BITS <= needed.least <= needed.roomy
    assert memory + needed.window < 1 << needed.least
    more = bar_window.need([*functions, H100], memory, uefi)
    assert more.window > needed.window and more.least >= needed.least
    for bits in range(36, 53):
        chosen = bar_window.choose(needed, bits)
        assert chosen is None or needed.least <= chosen <= min(
            bits, bar_window.MAX_BITS, needed.roomy)


@pytest.mark.parametrize('size, text', [
    (1, '1 MiB'), (64 * _MIB, '64 MiB'), (_GIB, '1 GiB'),
    (_GIB + 1, '2 GiB'), (1920 * _GIB + 48 * _MIB, '1921 GiB')])
def test_sizes_are_rounded_up(size, text):
    assert bar_window.text(size) == text
