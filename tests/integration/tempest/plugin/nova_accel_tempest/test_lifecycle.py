# SPDX-License-Identifier: Apache-2.0
"""The life of a server with a PCI device, as Cyborg's plugin tests it.

Scenarios, flavors, waiting and what the guest is asked are the peer's, as they
are. One method is not: where it asks Cyborg's API which accelerator requests
(ARQs) a server has, Placement is asked what it was promised, and libvirt which
device its guest holds for that. It is said in the words of that API, since the
peer's checks read it.
"""

import collections
import re
import subprocess
from xml.etree import ElementTree

from cyborg_tempest_plugin.tests.scenario import test_pci_driver_lifecycle
from tempest import config

CONF = config.CONF

#: What nova_accel calls a hostdev names the provider of its device.
_ALIAS = re.compile(r'ua-accel-.+?-([0-9a-f-]{36})-[0-9]+(?:-[0-9a-f]{8})?')

#: In which Placement counts what is taken of a single device.
_UNITS = 'CUSTOM_UNIT_OF_'


class TestLifecycle(test_pci_driver_lifecycle.TestPCIDriverLifecycle):
    """The peer's ten scenarios."""

    credentials = ['primary', 'admin']

    def _list_instance_arqs(self, server_id, bind_state=None):
        """One for each unit that it was promised or holds.

        :param bind_state: if given, none at all unless those are the same
        """
        promised, held = self._promised(server_id), self._held(server_id)
        same = promised == collections.Counter(
            provider for provider, _address in held)
        if bind_state and not same:
            return []
        return [{'instance_uuid': server_id,
                 'attach_handle_type': 'PCI',
                 'attach_handle_info': address}
                for address in [address for _provider, address in held]
                or [{}] * promised.total()]

    def _promised(self, server_id) -> collections.Counter[str]:
        """How many units it has in Placement, by the device's provider."""
        found = self.os_admin.placement_client.list_allocations(server_id)
        return collections.Counter({
            provider: amount
            for provider, allocation in found['allocations'].items()
            for name, amount in allocation['resources'].items()
            if name.startswith(_UNITS)})

    def _held(self, server_id) -> list[tuple[str, dict[str, str]]]:
        """The devices that its guest holds: provider, address on the host."""
        found = subprocess.run(
            [*CONF.nova_accel.virsh, 'dumpxml', server_id],
            capture_output=True, text=True)
        if found.returncode:
            if 'failed to get domain' in found.stderr:
                return []
            raise RuntimeError(f'virsh dumpxml {server_id}: {found.stderr}')
        return [
            (match[1], _address(hostdev))
            for hostdev in ElementTree.fromstring(found.stdout).iter('hostdev')
            if (match := _ALIAS.fullmatch(hostdev.find('alias').get('name')))]


def _address(hostdev) -> dict[str, str]:
    """As Cyborg's API has it."""
    address = hostdev.find('source/address')
    return {'domain': address.get('domain'), 'bus': address.get('bus'),
            'device': address.get('slot'),
            'function': address.get('function'),
            'managed': 'true' if hostdev.get('managed') == 'yes' else 'false'}
