# SPDX-License-Identifier: Apache-2.0
"""Nested machines that offer what they have, and somebody who wants it."""

import json
import pathlib

from tests.integration.nested import patience
from tests.integration.nested import tenant as tenants

_CONF = pathlib.Path(__file__).with_name('nova.conf')
_BOOT = pathlib.Path(__file__).with_name('rc.local')

#: What each machine offers, by class, as nova.conf says.
OFFERED = {'VGPU': 4, 'CUSTOM_GPU': 1, 'CUSTOM_QAT': 4, 'CUSTOM_ALVEO': 1}


def enter(cloud, *machines):
    """A tenant of machines that offer everything.

    What it leaves on a machine ends with that, or with the session.
    """
    tenant = tenants.Tenant(cloud, {machine.host: machine
                                    for machine in machines})
    for machine in machines:
        _boot(machine)
        offer(tenant, machine)
    return tenant


def prepare(machine) -> None:
    """Have a machine offer everything from the first start of nova-compute."""
    _boot(machine)
    machine.configure(_CONF.read_text())


def _boot(machine):
    machine.write('/etc/rc.local', _BOOT.read_text())
    machine.run('chmod +x /etc/rc.local && /etc/rc.local')


def leave_to_nova(tenant, machine, **products: str) -> None:
    """Have ``[pci] device_spec`` name devices of ours instead.

    :param products: product id by class
    """
    ours, novas = [], []
    for line in _CONF.read_text().splitlines():
        is_novas = any(f'"product_id": "{product}"' in line
                       for product in products.values())
        (novas if is_novas else ours).append(line)
    specs = [json.loads(line.split('=', 1)[1]) for line in novas]
    for spec in specs:
        del spec['resource_class']
    machine.configure('\n'.join(
        [*ours, '[pci]', *(f'device_spec = {json.dumps(spec)}'
                          for spec in specs), '']))
    machine.restart('nova-compute')
    patience.until(
        f'{machine.host} does not offer {" and ".join(products)}',
        lambda: not tenant.ledger.can_be_had(machine.host).keys()
        & products.keys() and tenant.service(machine.host))


def offer(tenant, machine, more: str = '') -> None:
    """Have nova-compute run with our entries, and Placement have them.

    :param more: lines of ``[nova_accel]`` beside ours
    """
    if machine.configure(_CONF.read_text() + more):
        machine.restart('nova-compute')
    patience.until(
        f'{machine.host} offers {OFFERED}',
        lambda: tenant.ledger.can_be_had(machine.host).items()
        >= OFFERED.items())
