# SPDX-License-Identifier: Apache-2.0
"""Nested machines that offer what they have, and somebody who wants it."""

import contextlib
import pathlib

from tests.integration.nested import patience
from tests.integration.nested import tenant as tenants

_CONF = pathlib.Path(__file__).with_name('nova.conf')
_BOOT = pathlib.Path(__file__).with_name('rc.local')

#: What each machine offers, by class, as nova.conf says.
OFFERED = {'VGPU': 4, 'CUSTOM_GPU': 1, 'CUSTOM_QAT': 4, 'CUSTOM_ALVEO': 1}


@contextlib.contextmanager
def enter(cloud, *machines):
    """A tenant of machines that offer everything."""
    cloud.configure('nova', '[DEFAULT]\nallow_resize_to_same_host = true\n')
    cloud.restart('nova-api')
    tenant = tenants.Tenant(cloud, {machine.host: machine
                                    for machine in machines})
    for machine in machines:
        machine.write('/etc/rc.local', _BOOT.read_text())
        machine.run('chmod +x /etc/rc.local && /etc/rc.local')
        offer(tenant, machine)
    try:
        yield tenant
    finally:
        tenant.leave()


def offer(tenant, machine, more: str = '') -> None:
    """Start nova-compute with our entries, and wait until Placement has them.

    :param more: lines of ``[nova_accel]`` beside ours
    """
    machine.configure(_CONF.read_text() + more)
    machine.restart('nova-compute')
    patience.until(
        f'{machine.host} offers {OFFERED}',
        lambda: tenant.ledger.can_be_had(machine.host).items()
        >= OFFERED.items())
