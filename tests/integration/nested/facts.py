# SPDX-License-Identifier: Apache-2.0
"""Print what sysfs shows of a machine's PCI functions and mdevs, as JSON.

This runs in the machine with its Python. It imports no code of nova_accel, so
its results are independent of the tested code.
"""

import json
import os
import pathlib
import struct

_FUNCTIONS = pathlib.Path('/sys/bus/pci/devices')
_MDEVS = pathlib.Path('/sys/bus/mdev/devices')

_SERIAL_NUMBER = 3


def main():
    functions = {path.name: _function(path) for path in _FUNCTIONS.iterdir()}
    for path in _FUNCTIONS.glob('*/virtfn*'):
        virtual = functions.get(_target(path))
        if virtual:
            virtual['card'] = path.parent.name
            virtual['number'] = int(path.name[len('virtfn'):]) + 1
            virtual['serial'] = functions[path.parent.name]['serial']
    print(json.dumps({'functions': functions, 'mdevs': _mdevs()}))


def _function(path):
    return {'card': path.name, 'number': 0, 'serial': _serial(path),
            'ids': _read(path / 'vendor') + _read(path / 'device')[2:],
            'driver': _target(path / 'driver')}


def _mdevs():
    if not _MDEVS.is_dir():
        return {}
    return {path.name: {'parent': path.resolve().parent.name,
                        'type': _target(path / 'mdev_type')}
            for path in _MDEVS.iterdir()}


def _serial(path):
    """Return the lower half of the Device Serial Number, None without it."""
    try:
        config = (path / 'config').read_bytes()
    except OSError:
        return None
    at = 0x100
    while at <= len(config) - 12:
        header, low = struct.unpack_from('<II', config, at)
        if header & 0xffff == _SERIAL_NUMBER:
            return low
        if header >> 20 <= at:
            break
        at = header >> 20
    return None


def _read(path):
    try:
        return path.read_text().strip()
    except OSError:
        return ''


def _target(path):
    try:
        return os.path.basename(os.readlink(path))
    except OSError:
        return ''


if __name__ == '__main__':
    main()
