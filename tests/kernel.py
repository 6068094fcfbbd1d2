# SPDX-License-Identifier: Apache-2.0
"""A simulated kernel: writes to sysfs change the files of a test."""

import pathlib

import fixtures


class Mdevs(fixtures.Fixture):
    """Simulates how a kernel creates and removes mdevs.

    Source: Documentation/ABI/testing/sysfs-bus-vfio-mdev.
    """

    def _setUp(self):
        self.useFixture(fixtures.MonkeyPatch(
            'nova_accel.host.operations.write', self._write))

    @staticmethod
    def _write(path, text):
        path = pathlib.Path(path)
        if path.name == 'create':
            _create_mdev(path.parent, text)
        else:
            _remove_mdev(path.parent)


def _create_mdev(mdev_type, uuid):
    """Create an mdev. Its device then has no room for another type."""
    if not (mdev_type / 'available_instances').exists():
        raise FileNotFoundError(2, 'No such file or directory')
    available = int((mdev_type / 'available_instances').read_text())
    if available < 1:
        raise OSError(22, 'Invalid argument')
    (mdev_type / 'devices' / uuid).mkdir(parents=True)
    for other in mdev_type.parent.iterdir():
        (other / 'available_instances').write_text(
            f'{available - 1 if other == mdev_type else 0}\n')
    # /sys/bus/mdev/devices/<uuid> leads to the device.
    bus = _sysfs(mdev_type) / 'bus/mdev/devices'
    bus.mkdir(parents=True, exist_ok=True)
    (bus / uuid).symlink_to(mdev_type / 'devices' / uuid)


def _remove_mdev(device):
    place = device.resolve()
    if not place.exists():
        raise FileNotFoundError(2, 'No such file or directory')
    mdev_type = place.parent.parent
    device.unlink()
    place.rmdir()
    left = sum(1 for other in mdev_type.parent.iterdir()
               for _uuid in (other / 'devices').glob('*'))
    for other in mdev_type.parent.iterdir():
        room = int((other / 'available_instances').read_text())
        if other == mdev_type:
            room += 1
        elif not left:
            room = 1
        (other / 'available_instances').write_text(f'{room}\n')


def _sysfs(path):
    while not (path / 'bus').is_dir():
        path = path.parent
    return path
