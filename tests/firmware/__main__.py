# SPDX-License-Identifier: Apache-2.0
"""Try what core.guest.bar_window says of firmware.

``python -m tests.firmware OVMF_CODE OVMF_VARS``.

It needs QEMU for x86, and OVMF of edk2-stable202211 or later as two files; and
takes some minutes. QEMU's own SeaBIOS is tried as well. The exit code is 1 if
firmware does otherwise than we say.
"""

import shutil
import sys
import tempfile

from nova_accel.core import model
from nova_accel.core.guest import bar_window
from tests.firmware import machine

_GIB, _MIB = bar_window.GIB, bar_window.MIB

#: BARs of each root port. Small ones leave gaps between the large.
_GUESTS = {
    'one of 16 GiB': [[16 * _GIB]],
    'one of 64 GiB': [[64 * _GIB]],
    'one of 128 GiB': [[128 * _GIB]],
    'two of 128 GiB and 64 MiB': [[128 * _GIB, 64 * _MIB]] * 2,
    'eight of 128 GiB and 64 MiB': [[128 * _GIB, 64 * _MIB]] * 8,
    'four of 256 GiB and 64 MiB': [[256 * _GIB, 64 * _MIB]] * 4,
}


def main(code: str, variables: str) -> int:
    wrong = 0
    for name, ports in _GUESTS.items():
        for bits, expected in _expectations(ports, uefi=True):
            with tempfile.NamedTemporaryFile() as copy:
                shutil.copyfile(variables, copy.name)
                wrong += _try('OVMF', name, ports, bits, expected, [
                    '-drive', f'if=pflash,format=raw,readonly=on,file={code}',
                    '-drive', f'if=pflash,format=raw,file={copy.name}'])
        for bits, expected in _expectations(ports, uefi=False):
            wrong += _try('SeaBIOS', name, ports, bits, expected, [])
    return 1 if wrong else 0


def _expectations(ports, uefi):
    """Widths, and whether all BARs have addresses then."""
    needed = bar_window.need([[model.Bar(number, size)
                               for number, size in enumerate(sizes)]
                              for sizes in ports], 512 * _MIB, uefi)
    if not needed:
        return [(bar_window.DEFAULT_BITS, True)]
    # SeaBIOS would do with less than is asked for.
    return [(bar_window.DEFAULT_BITS, False), (needed.least, True), *(
        [(needed.least - 1, False)]
        if uefi and needed.least > bar_window.MIN_BITS else [])]


def _try(firmware, name, ports, bits, expected, options) -> bool:
    found = machine.addresses(ports, bits, options)
    # An address that the CPU cannot reach is none.
    there = bool(found) and all(
        address is not None and address < 1 << bits for address in found)
    print(f'{firmware}, {bits} bits, {name}: '
          f'{"all" if there else "not all"} have an address'
          f'{"" if there == expected else ", AND THAT IS NOT AS WE SAY"}',
          flush=True)
    return there != expected


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
