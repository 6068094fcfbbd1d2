# SPDX-License-Identifier: Apache-2.0
"""A stand-in for nvme-cli, and a disk of files that it works on.

The files ``state`` and ``calls`` beside the disk have the properties of its
controller and the commands that it got. Data structures are those of the NVM
Express specification, as in nvme-types.h of libnvme.
"""

import json
import os
import pathlib
import re
import struct
import sys

ADDRESS = '0000:81:00.0'
#: Bytes of a logical block.
BLOCK = 512

#: Properties of the controller, and how an erase behaves: ``erases``,
#: ``nothing``, ``fails``, ``hangs``, ``random``, ``first`` (erases only the
#: first block), ``refuses``.
_STATE = {'sanicap': 0b010, 'oacs': 0b1010, 'fna': 0, 'unvmcap': 0, 'cmic': 0,
          'allocated': [1], 'controllers': [7], 'secondary': {}, 'flbas': 0,
          'dps': 0, 'behaviour': 'erases', 'polls': 0, 'sstat': 0, 'action': 0}


class Disk:
    """An NVMe disk with one namespace, in a copy of sysfs.

    :param path: the directory above ``sys`` and ``dev``
    :param state: properties that differ from the usual ones
    """

    def __init__(self, path: pathlib.Path, blocks: int = 5000, **state):
        self.path = path
        self._state = path / 'state'
        self._state.write_text(json.dumps({**_STATE, **state}))
        self.function = path / f'sys/bus/pci/devices/{ADDRESS}'
        self.controller = self.function / 'nvme/nvme0'
        self.controller.mkdir(parents=True)
        (self.controller / 'state').write_text('live\n')
        self.add(1, 'nvme0n1', blocks)
        (path / 'bin').mkdir()
        program = path / 'bin/nvme'
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -IS {__file__} '
                           f'{path} "$@"\n')
        program.chmod(0o755)

    def add(self, number, name, blocks=5000):
        """Add a namespace with data in all of its blocks.

        :param name: of the entry of the controller, which the kernel's
            multipath calls nvme0c0n1
        """
        entry = self.controller / name
        entry.mkdir()
        (entry / 'nsid').write_text(f'{number}\n')
        name = name.replace('c0', '')
        block = self.path / f'sys/class/block/{name}'
        (block / 'queue').mkdir(parents=True)
        (block / 'queue/logical_block_size').write_text(f'{BLOCK}\n')
        (block / 'ro').write_text('0\n')
        (self.path / 'dev').mkdir(exist_ok=True)
        data = b'secret of the last tenant.......' * (BLOCK // 32)
        (self.path / f'dev/{name}').write_bytes(data * blocks)

    def change(self, **state):
        self._state.write_text(json.dumps({**self.state, **state}))

    @property
    def state(self):
        return json.loads(self._state.read_text())

    def calls(self):
        """Return the commands that change the disk, without its path."""
        path = self.path / 'calls'
        return [line for line in (path.read_text().splitlines()
                                  if path.exists() else ())
                if line.startswith(('sanitize ', 'format '))]


class _Command:
    """One call of nvme-cli."""

    def __init__(self, path, words):
        self.disk = Disk.__new__(Disk)
        self.disk.path = path
        self.disk._state = path / 'state'
        self.name, _device, *options = words
        self.options = dict(re.fullmatch(r'--([\w-]+)(?:=(.*))?', option
                                         ).groups() for option in options)
        with (path / 'calls').open('a') as file:
            print(self.name, *options, file=file)

    def run(self):
        """Return the output.

        :raises ValueError: if the controller refuses
        """
        return getattr(self, self.name.replace('-', '_'))(self.disk.state)

    def number(self, name):
        return int(self.options[name], 0)

    def admin_passthru(self, state):
        assert self.number('opcode') == 6
        data = bytearray(4096)
        match self.number('cdw10'):
            case 0x00:
                assert self.number('namespace-id') in state['allocated']
                data[26], data[29] = state['flbas'], state['dps']
            case 0x01:
                data[76] = state['cmic']
                struct.pack_into('<H', data, 78, 7)
                struct.pack_into('<H', data, 256, state['oacs'])
                struct.pack_into('<Q', data, 296, state['unvmcap'])
                struct.pack_into('<I', data, 328, state['sanicap'])
                data[524] = state['fna']
            case 0x10 if state['oacs'] & 8:
                struct.pack_into(f'<{len(state["allocated"])}I', data, 0,
                                 *state['allocated'])
            case 0x02:
                struct.pack_into('<I', data, 0, 1)
            case 0x13 if state['controllers']:
                struct.pack_into(f'<{len(state["controllers"]) + 1}H', data, 0,
                                 len(state['controllers']),
                                 *state['controllers'])
            case 0x15:
                data[0] = len(state['secondary'])
                for index, (one, online) in enumerate(
                        state['secondary'].items(), 1):
                    struct.pack_into('<HHB', data, 32 * index, int(one), 7,
                                     online)
            case _:
                raise ValueError('NVMe status: Invalid Field in Command: A '
                                 'reserved coded value(0x4002)')
        return bytes(data)

    def sanitize(self, state):
        self.disk.change(sstat=2, action=self.number('sanact'))
        if state['behaviour'] == 'refuses':
            raise ValueError('NVMe status: Namespace is Write Protected')
        if not state['polls'] and state['behaviour'] != 'hangs':
            self._finish(state)
        return b''

    def sanitize_log(self, state):
        if state['sstat'] == 2 and state['behaviour'] != 'hangs':
            self.disk.change(polls=state['polls'] - 1)
            if state['polls'] <= 1:
                self._finish(state)
        state = self.disk.state
        # nvme-cli 2.3 also prints the log as text.
        return struct.pack('<HHI504x', 0x8000 if state['sstat'] == 2
                           else 0xffff, state['sstat'],
                           state['action']) + b'Sanitize Progress'

    def format(self, state):
        if state['behaviour'] == 'refuses':
            raise ValueError('NVMe status: Format in progress')
        self._erase(state, [self.number('namespace-id')])
        return b'Success formatting namespace'

    def _finish(self, state):
        has_failed = state['behaviour'] == 'fails'
        if not has_failed:
            self._erase(state, state['allocated'])
        self.disk.change(sstat=3 if has_failed else 0x101)

    def _erase(self, state, namespaces):
        for number in namespaces:
            file = self.disk.path / f'dev/nvme0n{number}'
            size = file.stat().st_size
            match state['behaviour']:
                case 'erases':
                    file.write_bytes(bytes(size))
                case 'random':
                    file.write_bytes(os.urandom(size))
                case 'first':
                    with file.open('r+b') as opened:
                        opened.write(bytes(BLOCK))


def main():
    try:
        sys.stdout.buffer.write(_Command(pathlib.Path(sys.argv[1]),
                                         sys.argv[2:]).run())
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == '__main__':
    sys.exit(main())
