# SPDX-License-Identifier: Apache-2.0
"""Run neutron-macvtap-agent without a privsep daemon.

The agent of Neutron 29 connects to the daemon and then forks. The thread that
reads the daemon's answers does not survive the fork, so the worker waits for
ever. This process is already root and does not need the daemon.
"""

import sys

from neutron import privileged
from neutron.cmd.plugins import macvtap_neutron_agent

for context in vars(privileged).values():
    if hasattr(context, 'set_client_mode'):
        context.set_client_mode(False)
sys.argv[0] = 'neutron-macvtap-agent'
sys.exit(macvtap_neutron_agent.main())
