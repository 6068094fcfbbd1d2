# SPDX-License-Identifier: Apache-2.0
"""A host whose GPUs are behind NVSwitches, and its fabric manager."""

import fixtures
from nova.tests.fixtures import libvirt as fakelibvirt

from nova_accel.host import libvirt_xml
from tests import fmpm

#: The GPUs of cloud.EIGHT_GPUS, by module; not in the order of addresses.
MODULES = dict(zip((3, 1, 2, 4, 7, 5, 6, 8), (
    f'0000:{bus:x}:00.0' for bus in (
        0x43, 0x44, 0x48, 0x49, 0x83, 0x84, 0x88, 0x89)), strict=True))


class Fabric(fixtures.Fixture):
    """A fabric manager, and what each guest found when it started.

    :param connection: returns the connection to libvirt of the host
    :param state: of :class:`tests.fmpm.FabricManager`
    :ivar unconnected: a line for each guest that started without exactly its
        own partitions
    """

    def __init__(self, connection, **state):
        self._connection = connection
        self._state = state

    def _setUp(self):
        self.manager = fmpm.FabricManager(
            self.useFixture(fixtures.TempDir()).path, **self._state)
        self.option = self.manager.option(
            modules={str(module): address
                     for module, address in MODULES.items()},
            modules_command=None)
        self.unconnected = []
        create = fakelibvirt.Domain.createWithFlags

        def created(domain, *args):
            if domain._connection is self._connection():
                self._check(domain)
            return create(domain, *args)

        self.useFixture(fixtures.MockPatchObject(
            fakelibvirt.Domain, 'createWithFlags', created))

    def _check(self, domain):
        cards = {str(device.address) for device
                 in libvirt_xml.parse(domain.XMLDesc(0))[1]}
        own = set().union(*(members for members in self.active()
                            if members & cards))
        if own != cards:
            self.unconnected.append(
                f'{domain.UUIDString()} started with {sorted(cards)}, of '
                f'active partitions with {sorted(own)}')

    def active(self):
        """Return the cards of each active partition."""
        return [{MODULES[module] for module in fmpm.HGX[number]}
                for number in self.manager.active]
