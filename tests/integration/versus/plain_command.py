# SPDX-License-Identifier: Apache-2.0
"""Compare plain servers with Nova's: ``python -m tests.integration plain``.

It boots and deletes servers without a device on a host with eight GPUs, in
turn with nova_accel and with Nova alone. Both report the GPUs to Placement.
The documentation includes the results.
"""

import contextlib
import dataclasses
import pathlib
import sys

from tests.integration import namespaces
from tests.integration import place
from tests.integration import steps
from tests.integration.cloud import install_guide
from tests.integration.cloud import resources
from tests.integration.cloud import services
from tests.integration.stage1 import outer
from tests.integration.versus import command
from tests.integration.versus import plain

_NOVA = ('nova-api', 'nova-conductor', 'nova-scheduler', 'nova-compute')
_LISTED = pathlib.Path(__file__).with_name('node_devices.py')

#: The number of GPUs of the recorded machine, and each side's configuration.
_GPUS = 8
_ENTRIES = {
    plain.OURS: f'[nova_accel]\ndevice_spec = {outer.GPU_ENTRY}\n',
    plain.NOVA: '[pci]\nreport_in_placement = true\n'
                'device_spec = {"vendor_id": "10de", "product_id": "2330"}\n'}
#: Only nova_accel reads this.
_SYSFS = '[nova_accel]\nsysfs_root = {}\n'


class Node:
    """The compute node, which runs one side at a time.

    :param cloud: a cloud that is up
    :param sysfs: the sysfs of the recorded machine
    """

    def __init__(self, cloud, sysfs: pathlib.Path):
        self._cloud = cloud
        self._sysfs = sysfs

    @contextlib.contextmanager
    def instead(self):
        """Run this nova-compute instead of the cloud's own."""
        before = services.SERVICES['nova-compute']
        services.SERVICES['nova-compute'] = dataclasses.replace(
            before, command=(f'{place.BIN}/python', '-P', str(_LISTED),
                             str(self._sysfs), 'nova-compute'))
        try:
            yield
        finally:
            services.SERVICES['nova-compute'] = before
            self._become('', install_guide.conf())

    def have(self, way: str) -> int:
        """Switch the cloud to one side.

        :returns: the number of resource providers of the host
        """
        self._become(_ENTRIES[way] + _SYSFS.format(self._sysfs),
                     install_guide.conf() if way == plain.OURS else '')

        def reported():
            names = [provider.name for provider in self._providers()]
            devices = [name for name in names if name.count(':') == 2]
            return len(devices) == _GPUS and len(names)
        return steps.wait('resource providers of all GPUs', reported)

    def _become(self, text, guide):
        # Without report_in_placement, nova-compute does not start while
        # Placement has providers that it made with this option.
        self._cloud.stop('nova-compute')
        for provider in self._providers():
            if provider.name != namespaces.HOST:
                self._cloud.connection.placement.delete_resource_provider(
                    provider)
        self._cloud.configure('nova', guide, install_guide.NAME)
        self._cloud.configure('nova', text, 'plain')
        self._cloud.restart(*_NOVA)

    def _providers(self):
        placement = self._cloud.connection.placement
        [root] = placement.resource_providers(name=namespaces.HOST)
        return list(placement.resource_providers(in_tree=root.id))


def main() -> int:
    return command.run(plain, __doc__, _measure)


def _measure(cloud, rounds, shown):
    node = Node(cloud, outer.machine(outer.GPUS) / 'sys')
    flavor = resources.flavor(cloud.connection, 'versus-plain')
    with shown.step('boots and deletes'), node.instead():
        return plain.measure(command.trials(cloud), node.have, flavor.id,
                             rounds, shown.say)


if __name__ == '__main__':
    sys.exit(main())
