# SPDX-License-Identifier: Apache-2.0
"""Parents of mdevs that are not PCI devices."""

from nova_accel.host import reader
from nova_accel.host import recorder
from tests.unit import build

_MTTY = 'sys/devices/virtual/mtty/mtty'
_ENTRY = {'parent': 'mtty', 'mdev_type': 'mtty-2',
          'resource_class': 'CUSTOM_TTY'}


def machine(available='12\n', **more):
    gpu = 'pci0000:80/0000:80:01.0/0000:81:00.0'
    return build.sysfs(
        {gpu: {}},
        files={f'{_MTTY}/mdev_supported_types/mtty-2/{name}': text
               for name, text in {'available_instances': available,
                                  **more}.items()},
        links={'sys/class/mdev_bus/mtty': '../../devices/virtual/mtty/mtty',
               'sys/class/mdev_bus/0000:81:00.0': f'../../devices/{gpu}'})


def test_each_parent_is_read_once():
    host = reader.read(machine(), build.entries(_ENTRY))
    assert [str(function.address) for function in host.functions] == [
        '0000:81:00.0', 'mtty']
    assert build.units(host) == {'CUSTOM_TTY_mtty-2': ['mtty'] * 12}


def test_recording_contains_parents():
    recording = recorder.record(machine())
    entries = build.entries(_ENTRY)
    assert reader.read(recording, entries) == reader.read(machine(), entries)


def test_device_api_is_read_and_recorded():
    live = machine(device_api='vfio-ap\n')
    for tree in (live, recorder.record(live)):
        host = reader.read(tree, build.entries(_ENTRY))
        assert build.refusals(host) == {
            'mtty': 'mdevs of its type mtty-2 are vfio-ap, and a guest can '
                    'only have vfio-pci'}


def test_malformed_available_instances_are_reported():
    host = reader.read(machine('many\n'), build.entries(_ENTRY))
    assert 'has no readable available' in build.refusals(host)['mtty']
