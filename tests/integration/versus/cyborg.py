# SPDX-License-Identifier: Apache-2.0
"""Start and stop Cyborg's services, with a device profile for servers."""

import pathlib

from tests.integration import place
from tests.integration import steps
from tests.integration.cloud import resources

SERVICES = ('cyborg-api', 'cyborg-conductor', 'cyborg-agent')

#: nova_accel has no profile of this name, so nova-api asks Cyborg for it.
PROFILE = 'of-cyborg'

#: Options that nova.conf needs with Cyborg.
_NOVA = pathlib.Path('/etc/cyborg/nova.conf')
_ENDPOINTS = {'cyborg': ('accelerator', 'http://127.0.0.1:6666/v2')}

#: A request that matches the device of Cyborg's fake driver.
_GROUPS = [{'resources:FPGA': '1', 'trait:CUSTOM_FAKE_DEVICE': 'required'}]


def up(cloud) -> None:
    """Start Cyborg and configure Nova; restart Nova's services afterwards.

    :raises Failure: if Cyborg reports no device within minutes
    """
    resources.identity(cloud.connection, _ENDPOINTS)
    steps.run(place.BIN / 'cyborg-dbsync', '--config-file',
              '/etc/cyborg/cyborg.conf', 'upgrade',
              log=place.LOG / 'cyborg-dbsync.log')
    cloud.start(*SERVICES)
    cloud.configure('nova', _NOVA.read_text(), 'cyborg')
    # A new connection gets a token whose catalog has the new endpoint.
    api = resources.connect().accelerator
    # An agent that starts before the conductor waits a minute for it, and
    # another minute before it reports again.
    steps.wait('Cyborg\'s device', lambda: list(api.deployables()), 300)
    # The agent reports to Cyborg first, then to Placement.
    steps.wait('its resource provider', lambda: [
        provider for provider in cloud.connection.placement
        .resource_providers() if provider.name.endswith('_FakeDevice')], 120)
    if PROFILE not in {each.name for each in api.device_profiles()}:
        api.post('/device_profiles',
                 json=[{'name': PROFILE, 'groups': _GROUPS}])


def down(cloud) -> None:
    """Stop Cyborg and unconfigure Nova; restart Nova's services afterwards.

    Cyborg's records in its database and in Placement stay.
    """
    cloud.stop(*SERVICES)
    cloud.configure('nova', '', 'cyborg')
