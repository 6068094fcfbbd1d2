# SPDX-License-Identifier: Apache-2.0
"""Cyborg beside us: its services, a profile in its database, Nova's client."""

import pathlib

from tests.integration import place
from tests.integration import steps
from tests.integration.cloud import resources

SERVICES = ('cyborg-api', 'cyborg-conductor', 'cyborg-agent')

#: A profile that no file of ours has: nova-api leaves it to Cyborg.
PROFILE = 'of-cyborg'

#: What nova.conf has more where there is Cyborg.
_NOVA = pathlib.Path('/etc/cyborg/nova.conf')
_ENDPOINTS = {'cyborg': ('accelerator', 'http://127.0.0.1:6666/v2')}

#: What the one device of its fake driver has.
_GROUPS = [{'resources:FPGA': '1', 'trait:CUSTOM_FAKE_DEVICE': 'required'}]


def up(cloud) -> None:
    """Start Cyborg, and have Nova know it once its services are restarted.

    :raises Failure: if its device is not reported within minutes
    """
    resources.identity(cloud.connection, _ENDPOINTS)
    steps.run(place.BIN / 'cyborg-dbsync', '--config-file',
              '/etc/cyborg/cyborg.conf', 'upgrade',
              log=place.LOG / 'cyborg-dbsync.log')
    cloud.start(*SERVICES)
    cloud.configure('nova', _NOVA.read_text(), 'cyborg')
    # One whose token has the new endpoint in its catalogue.
    api = resources.connect().accelerator
    # An agent that is there before the conductor is waits a minute for it, and
    # another one before it says so again.
    steps.wait('Cyborg\'s device', lambda: list(api.deployables()), 300)
    # The agent has told Cyborg before it tells Placement.
    steps.wait('its resource provider', lambda: [
        provider for provider in cloud.connection.placement
        .resource_providers() if provider.name.endswith('_FakeDevice')], 120)
    if PROFILE not in {each.name for each in api.device_profiles()}:
        api.post('/device_profiles',
                 json=[{'name': PROFILE, 'groups': _GROUPS}])


def down(cloud) -> None:
    """Stop Cyborg; what it has in databases and Placement stays.

    Nova forgets it once its services are restarted.
    """
    cloud.stop(*SERVICES)
    cloud.configure('nova', '', 'cyborg')
