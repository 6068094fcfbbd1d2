# SPDX-License-Identifier: Apache-2.0
"""The compute node of stage 1, with the sysfs of a recorded machine.

The sysfs is a copy on disk. A write to an attribute only changes a file. So
the reset of a function only writes its file ``reset``.
"""

import contextlib
import dataclasses
import pathlib
import tempfile

from nova_accel.host import tree
from tests.integration import place
from tests.integration.cloud import install_guide
from tests.integration.cloud import services

RECORDINGS = place.ROOT / 'tests' / 'data' / 'hosts'
#: Eight GPUs: four on each of two NUMA nodes, two behind each PCIe switch.
#: Each node also has a NIC behind one of its switches.
GPUS = RECORDINGS / 'l1-8gpu.json'
#: Fewer GPUs and NICs, and devices of other kinds.
KINDS = RECORDINGS / 'l1-kinds.json'

GPU = 'CUSTOM_GPU_H100'
GPU_ENTRY = ('{"vendor_id": "10de", "product_id": "2330", '
             f'"resource_class": "{GPU}", "traits": "CUSTOM_NVLINK"}}')
NIC = 'CUSTOM_NIC'
NIC_ENTRY = ('{"vendor_id": "8086", "product_id": "10c9", '
             f'"resource_class": "{NIC}"}}')
VF = 'CUSTOM_QAT_VF'
VF_ENTRY = ('{"vendor_id": "8086", "product_id": "37c9", '
            f'"resource_class": "{VF}"}}')

#: Run the periodic tasks often, so that tests do not wait long for them. Put a
#: server into ERROR if it is in BUILD for too long.
_CONF = """
[DEFAULT]
update_resources_interval = 10
instance_build_timeout = 120
"""
_SYSFS = '[nova_accel]\nsysfs_root = {}/sys\n'
_ENTRIES = ''.join(f'device_spec = {entry}\n'
                   for entry in (GPU_ENTRY, NIC_ENTRY, VF_ENTRY))
_PRETEND = pathlib.Path(__file__).with_name('pretend.py')


def through(*command: str) -> tuple[str, ...]:
    """Return a command line that runs a command through pretend.py."""
    return f'{place.BIN}/python', '-P', str(_PRETEND), *command


def machine(recording: pathlib.Path) -> pathlib.Path:
    """Write a recorded machine to disk.

    :returns: the directory; its ``sys`` is the sysfs
    """
    root = pathlib.Path(tempfile.mkdtemp(
        prefix='machine-', dir=place.STATE))
    tree.open_tree(recording).write(root)
    for function in _functions(root):
        # No kernel is there to unbind a driver.
        (function / 'driver').unlink(missing_ok=True)
        (function / 'reset').touch()
        (function / 'reset_method').write_text('flr\n')
    return root


def _functions(root):
    return (root / 'sys/bus/pci/devices').iterdir()


class Outer:
    """The compute node of stage 1.

    :param cloud: a cloud that is up
    """

    def __init__(self, cloud):
        self._cloud = cloud

    @contextlib.contextmanager
    def instead(self):
        """Run this nova-compute instead of the cloud's own."""
        before = services.SERVICES['nova-compute']
        services.SERVICES['nova-compute'] = dataclasses.replace(
            before, command=through('nova-compute'))
        try:
            self.have(GPUS)
            yield self
        finally:
            services.SERVICES['nova-compute'] = before
            self._cloud.configure('nova', '', 'stage1')
            self._cloud.restart('nova-compute')

    def have(self, recording: pathlib.Path) -> None:
        """Restart nova-compute with the devices of a recorded machine."""
        self._root = machine(recording)
        self._configure(_ENTRIES)
        self._cloud.restart('nova-compute')

    @contextlib.contextmanager
    def before_installation(self):
        """Remove nova_accel from nova.conf during the context.

        No service restarts at the beginning. Nova's services restart at the
        end.
        """
        self._configure('')
        try:
            with install_guide.unconfigured():
                yield
        finally:
            self._configure(_ENTRIES)
            self._cloud.restart('nova-api', 'nova-conductor',
                                'nova-scheduler', 'nova-compute')

    def _configure(self, entries):
        self._cloud.configure(
            'nova', _CONF + _SYSFS.format(self._root) + entries, 'stage1')

    def was_reset(self) -> set[str]:
        """Return the functions that were reset since the last call."""
        found = set()
        for function in _functions(self._root):
            if (function / 'reset').read_text():
                found.add(function.name)
                (function / 'reset').write_text('')
        return found
