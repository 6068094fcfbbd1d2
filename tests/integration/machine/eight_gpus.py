# SPDX-License-Identifier: Apache-2.0
"""The devices of ``compute1``, the host of the page "Get started".

It has eight GPUs: two behind each PCIe switch, four on each NUMA node. One
switch of each node also has a NIC. tests/data/hosts/l1-8gpu.json is a
recording of such a machine. The addresses are those of the page.
"""

from collections.abc import Iterator
import pathlib

from tests.integration.machine import devices

_MEMORY = 16 << 20


def arguments(_folder: pathlib.Path, number: int) -> list[str]:
    """Return QEMU's arguments, as `devices.arguments`."""
    return [*(word for node in (0, 1) for word in
              ('-netdev', f'user,id=net{node},restrict=on')),
            *devices.words(_devices(number))]


def _devices(number) -> Iterator[dict[str, object]]:
    yield from devices.host_bridges()
    for switch in range(4):
        node, port = divmod(switch, 2)
        yield _port('pcie-root-port', f'root{switch}', f'px{node}', port,
                    switch + 1)
        yield devices.device('x3130-upstream', f'switch{switch}',
                             f'root{switch}')
        for at in (0, 1):
            name = f'gpu{2 * switch + at}'
            yield _downstream(name, switch, at)
            yield devices.device(
                'accelerator', name, f'port-{name}',
                **{'vendor-id': 0x10de, 'device-id': 0x2330,
                   'subdevice-id': 0x16c1, 'class-id': 0x0302,
                   'revision': 0xa1, 'memory-size': _MEMORY,
                   'serial': 0x10000 * number + 2 * switch + at})
        if port == 0:
            yield _downstream(f'nic{node}', switch, 2)
            yield devices.device('igb', f'nic{node}', f'port-nic{node}',
                                 netdev=f'net{node}', romfile='')


def _downstream(name, switch, at):
    return _port('xio3130-downstream', f'port-{name}', f'switch{switch}', at,
                 16 * (switch + 1) + at)


def _port(driver, name, bus, at, chassis):
    return devices.device(driver, name, bus, addr=f'{at:x}.0',
                          chassis=chassis, slot=chassis)
