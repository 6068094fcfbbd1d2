# SPDX-License-Identifier: Apache-2.0
"""neutron-macvtap-agent, with what is privileged in the same process.

Neutron 29's talks to its privileged daemon, and then forks; what reads the
daemon's answers does not survive that, and the worker waits for ever. We are
root already.
"""

import sys

from neutron import privileged
from neutron.cmd.plugins import macvtap_neutron_agent

for context in vars(privileged).values():
    if hasattr(context, 'set_client_mode'):
        context.set_client_mode(False)
sys.argv[0] = 'neutron-macvtap-agent'
sys.exit(macvtap_neutron_agent.main())
