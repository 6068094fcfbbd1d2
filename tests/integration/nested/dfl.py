#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Do with an FPGA what a vendor's tool does, through the kernel's DFL drivers.

    dfl.py program ADDRESS FILE   program the first region of a card
    dfl.py release ADDRESS        make the first port one of a virtual function
    dfl.py assign ADDRESS         give it back to the card

This runs in the machine. Sources: Documentation/fpga/dfl.rst and
include/uapi/linux/fpga-dfl.h of the kernel.
"""

import ctypes
import fcntl
import pathlib
import struct
import sys

_PROGRAM = 0xb680
_PORTS = {'release': 0x4004b681, 'assign': 0x4004b682}


def main(action, address, file=''):
    [engine] = pathlib.Path('/sys/bus/pci/devices', address).glob(
        'fpga_region/region*/dfl-fme.*')
    with open(f'/dev/{engine.name}', 'rb') as device:
        if action in _PORTS:
            fcntl.ioctl(device, _PORTS[action], struct.pack('i', 0))
            return
        data = pathlib.Path(file).read_bytes()
        buffer = ctypes.create_string_buffer(data, len(data))
        fcntl.ioctl(device, _PROGRAM, struct.pack(
            'IIIIQ', 24, 0, 0, len(data), ctypes.addressof(buffer)))


if __name__ == '__main__':
    main(*sys.argv[1:])
