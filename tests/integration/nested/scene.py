# SPDX-License-Identifier: Apache-2.0
"""Configuration of nested machines to offer their devices to a tenant."""

import json
import pathlib

from tests.integration.nested import patience
from tests.integration.nested import tenant as tenants

_CONF = pathlib.Path(__file__).with_name('nova.conf')
_BOOT = pathlib.Path(__file__).with_name('rc.local')

#: The units by class that nova.conf makes each machine offer.
OFFERED = {'VGPU': 4, 'CUSTOM_GPU': 1, 'CUSTOM_QAT': 4, 'CUSTOM_ALVEO': 1}


def enter(cloud, *machines):
    """Make machines offer all devices; return a tenant.

    Leftovers of the tenant are removed with the machine or the session.
    """
    tenant = tenants.Tenant(cloud, {machine.host: machine
                                    for machine in machines})
    for machine in machines:
        _boot(machine)
        offer(tenant, machine)
    return tenant


def options() -> str:
    """Return the options of nested machines, without their devices."""
    return ''.join(line for line in _CONF.read_text().splitlines(True)
                   if not line.startswith('device_spec'))


def prepare(machine) -> None:
    """Configure a machine to offer all devices, before nova-compute starts."""
    _boot(machine)
    machine.configure(_CONF.read_text())


def _boot(machine):
    machine.write('/etc/rc.local', _BOOT.read_text())
    machine.run('chmod +x /etc/rc.local && /etc/rc.local')


def leave_to_nova(tenant, machine, **products: str) -> None:
    """Move devices from nova_accel's device_spec to ``[pci] device_spec``.

    :param products: the product ids of the devices by resource class
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


def give_class(machine, new: str, *classes: str) -> None:
    """Give the devices of some classes another one, and restart nova-compute.

    :param classes: the old classes, which become traits
    """
    text = _CONF.read_text()
    for name in classes:
        text = text.replace(f'"{name}"}}', f'"{new}", "traits": ["{name}"]}}')
    machine.configure(f'{text}moved_classes = '
                      + ','.join(f'{name}:{new}' for name in classes) + '\n')
    machine.restart('nova-compute')


def offer(tenant, machine, more: str = '') -> None:
    """Configure nova_accel's devices, and wait until Placement has them.

    :param more: additional lines of ``[nova_accel]``
    """
    if machine.configure(_CONF.read_text() + more):
        machine.restart('nova-compute')
    offered(tenant.ledger, machine)


def offered(ledger, machine):
    """Wait until Placement has all devices of a machine."""
    patience.until(
        f'{machine.host} offers {OFFERED}',
        lambda: ledger.can_be_had(machine.host).items() >= OFFERED.items())
