# SPDX-License-Identifier: Apache-2.0
"""The compute node of stage 1: a recorded machine in place of this one's.

Its sysfs is a copy that can be written to. Writes to its attributes are kept
as they are, which is all that the reset of a function is here.
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
#: Eight GPUs, four on each of two NUMA nodes, two behind each switch; and a
#: NIC behind one switch of each node.
GPUS = RECORDINGS / 'l1-8gpu.json'
#: The same, and whatever else there is, but fewer of each.
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

#: The periodic tasks come soon, so that nobody waits for them for long; a
#: server whose host never heard of it is in ERROR after a while.
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
    """A command of the cloud's environment, as nova-compute sees libvirt."""
    return f'{place.BIN}/python', '-P', str(_PRETEND), *command


def machine(recording: pathlib.Path) -> pathlib.Path:
    """Write a recorded machine; its sysfs is the folder ``sys`` of that."""
    root = pathlib.Path(tempfile.mkdtemp(
        prefix='machine-', dir=place.STATE))
    tree.open_tree(recording).write(root)
    for function in _functions(root):
        # Nobody is there to be unbound, and no kernel to do it.
        (function / 'driver').unlink(missing_ok=True)
        (function / 'reset').touch()
        (function / 'reset_method').write_text('flr\n')
    return root


def _functions(root):
    return (root / 'sys/bus/pci/devices').iterdir()


class Outer:
    """The compute node.

    :param cloud: that is up
    """

    def __init__(self, cloud):
        self._cloud = cloud

    @contextlib.contextmanager
    def instead(self):
        """Have nova-compute be this one, for the time of the context."""
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
        """Have nova-compute find another machine when it comes back."""
        self._root = machine(recording)
        self._configure(_ENTRIES)
        self._cloud.restart('nova-compute')

    @contextlib.contextmanager
    def before_installation(self):
        """Have nova.conf be without nova_accel, for the time of the context.

        No service is restarted before it; afterwards those of Nova are.
        """
        self._cloud.configure('nova', '', install_guide.NAME)
        self._configure('')
        try:
            yield
        finally:
            install_guide.configure()
            self._configure(_ENTRIES)
            self._cloud.restart('nova-api', 'nova-conductor',
                                'nova-scheduler', 'nova-compute')

    def _configure(self, entries):
        self._cloud.configure(
            'nova', _CONF + _SYSFS.format(self._root) + entries, 'stage1')

    def was_reset(self) -> set[str]:
        """The functions that were reset since this was asked last."""
        found = set()
        for function in _functions(self._root):
            if (function / 'reset').read_text():
                found.add(function.name)
                (function / 'reset').write_text('')
        return found
