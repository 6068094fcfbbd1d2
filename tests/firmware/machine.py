# SPDX-License-Identifier: Apache-2.0
"""A guest with large BARs that runs no further than its firmware.

QEMU's pci-testdev has a BAR of any size without memory behind it, and TCG does
not care what the host's CPU can address.
"""

import json
import re
import socket
import subprocess
import tempfile
import time

_LARGE = re.compile(r'BAR2: 64 bit prefetchable memory at 0x([0-9a-f]+) ')
_SMALL = re.compile(r'BAR0: 32 bit memory at 0x([0-9a-f]+) ')
_UNASSIGNED = 0xffffffffffffffff


def addresses(ports, bits, firmware, seconds=120):
    """Where the firmware puts BARs: addresses in bytes, None if nowhere.

    :param ports: for each root port, the sizes of its BARs in bytes
    :param firmware: QEMU's options for it
    :param seconds: after how many it is taken for granted that nothing will
        come; firmware that gives none of the devices an address may hang
    """
    with tempfile.TemporaryDirectory() as folder:
        monitor = f'{folder}/monitor'
        with subprocess.Popen(
                ['qemu-system-x86_64', '-machine', 'q35,accel=tcg',
                 # What OVMF takes for a CPU whose 40 bits say nothing.
                 '-cpu', f'max,vendor=GenuineIntel,phys-bits={bits}',
                 '-m', '512', '-nodefaults', '-display', 'none',
                 '-qmp', f'unix:{monitor},server=on,wait=off',
                 *firmware, *_devices(ports)],
                stdin=subprocess.DEVNULL) as process:
            try:
                return _wait(monitor, seconds)
            finally:
                process.kill()


def _devices(ports):
    for number, sizes in enumerate(ports):
        yield from ('-device', f'pcie-root-port,id=port{number},'
                               f'chassis={number},slot={number}')
        for function, size in enumerate(sizes):
            yield from ('-device', f'pci-testdev,bus=port{number},'
                                   f'addr=0.{function},multifunction=on,'
                                   f'membar={size}')


def _wait(monitor, seconds):
    end = time.monotonic() + seconds
    while True:
        time.sleep(1)
        text = _ask(monitor)
        large = [int(found, 16) for found in _LARGE.findall(text)]
        small = {int(found, 16) for found in _SMALL.findall(text)}
        # Small BARs are given addresses at the same time.
        done = small and _UNASSIGNED not in small
        if time.monotonic() > end or done:
            return [None if address == _UNASSIGNED else address
                    for address in large]


def _ask(monitor):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(monitor)
        with connection.makefile('rw') as file:
            file.readline()
            answer = ''
            for command, arguments in (
                    ('qmp_capabilities', {}),
                    ('human-monitor-command', {'command-line': 'info pci'})):
                file.write(json.dumps({'execute': command,
                                       'arguments': arguments}) + '\n')
                file.flush()
                while 'return' not in (answer := json.loads(
                        file.readline())):
                    pass
            return answer['return']
