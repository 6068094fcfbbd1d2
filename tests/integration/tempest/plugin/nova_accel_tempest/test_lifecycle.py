# SPDX-License-Identifier: Apache-2.0
"""Lifecycle tests of Cyborg's plugin for a server with a PCI device.

The tests run unchanged, except for one method. It asks Cyborg's API for the
accelerator requests (ARQs) of a server. Here it reads the server's allocations
from Placement and its hostdevs from libvirt instead. It returns them in the
format of Cyborg's API.
"""

import collections
import re
import subprocess
from xml.etree import ElementTree

from cyborg_tempest_plugin.tests.scenario import test_pci_driver_lifecycle
from tempest import config

CONF = config.CONF

#: A hostdev's alias by nova_accel; it has the UUID of the device's provider.
_ALIAS = re.compile(r'ua-accel-.+?-([0-9a-f-]{36})-[0-9]+(?:-[0-9a-f]{8})?')

#: The prefix of the resource classes of single devices.
_UNITS = 'CUSTOM_UNIT_OF_'


class TestLifecycle(test_pci_driver_lifecycle.TestPCIDriverLifecycle):
    """The ten tests of Cyborg's plugin."""

    credentials = ['primary', 'admin']

    def _list_instance_arqs(self, server_id, bind_state=None):
        """Return an ARQ for each hostdev, or else for each allocated unit.

        :param bind_state: if given, return none unless hostdevs and
            allocations match
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
        """Return a server's allocated units by device provider."""
        found = self.os_admin.placement_client.list_allocations(server_id)
        return collections.Counter({
            provider: amount
            for provider, allocation in found['allocations'].items()
            for name, amount in allocation['resources'].items()
            if name.startswith(_UNITS)})

    def _held(self, server_id) -> list[tuple[str, dict[str, str]]]:
        """Return the provider and host address of each of its hostdevs."""
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
    """Return a hostdev's address in the format of Cyborg's API."""
    address = hostdev.find('source/address')
    return {'domain': address.get('domain'), 'bus': address.get('bus'),
            'device': address.get('slot'),
            'function': address.get('function'),
            'managed': 'true' if hostdev.get('managed') == 'yes' else 'false'}
