# SPDX-License-Identifier: Apache-2.0
"""Nested machines as compute nodes of the cloud outside of them."""

from collections.abc import Callable
from collections.abc import Iterator
import contextlib
import datetime
import functools

from tests.integration import steps
from tests.integration.cloud import cloud as clouds
from tests.integration.cloud import configuration
from tests.integration.cloud import leftovers
from tests.integration.cloud import resources
from tests.integration.machine import built
from tests.integration.machine import clock
from tests.integration.machine import devices
from tests.integration.machine import guest
from tests.integration.machine import machine as machines
from tests.integration.machine import root

#: Prepares a machine.
Prepare = Callable[[machines.Machine], None]

#: The image of servers in the machine, in Glance.
IMAGE = 'machine-guest'

#: Nova may store a heartbeat of a killed nova-compute this much later.
_LAST_WORD = datetime.timedelta(seconds=5)

#: Options that differ from the cloud's own compute node. Tests add those of
#: nova_accel.
_CONFIGURATION = '''\
[DEFAULT]
my_ip = {address}
reserved_host_memory_mb = 256
# Shut guests down by their power button.
shutdown_timeout = 60
# Emulation is slow.
rpc_response_timeout = 180
report_interval = 5
[libvirt]
# The emulated processors have SVM, so guests need no second emulation.
virt_type = kvm
live_migration_inbound_addr = {address}
live_migration_scheme = tcp
[workarounds]
# On emulated processors a guest lacks some CPU features that libvirt reports.
# So for Nova even equal machines differ. libvirt compares CPUs itself.
skip_cpu_compare_on_dest = true
'''


def join(machine: machines.Machine, cloud: clouds.Cloud,
         prepare: Prepare) -> None:
    """Make a running machine a compute node, and wait until it is one.

    :param prepare: called before nova-compute starts
    :raises Failure: if it does not become a compute node
    """
    machine.write('/etc/nova/nova.conf', configuration.render(
        'nova/nova.conf', bin=f'{root.NOVA}/bin', host=machine.host,
        state='/var/lib',
        # A compute node has no database; it uses nova-conductor.
        databases=''))
    machine.write('/etc/nova/nova.conf.d/machine.conf',
                  _CONFIGURATION.format(address=machine.address))
    machine.run('mkdir -p /var/lib/nova/instances /var/lib/nova/lock')
    prepare(machine)
    attach(machine, cloud)
    machine.start('libvirtd')
    machine.start('nova-compute')
    # The service exists before the host is mapped to a cell.
    steps.wait(f'{machine.host} among the hypervisors', lambda: any(
        hypervisor.name == machine.host
        for hypervisor in cloud.connection.compute.hypervisors()), pause=1,
               clock=clock.Clock())


def attach(machine: machines.Machine, cloud: clouds.Cloud) -> None:
    """Make each start of the machine's nova-compute wait for a heartbeat."""
    machine.ready['nova-compute'] = functools.partial(_beats, machine, cloud)


def _beats(machine, cloud):
    """Wait for a heartbeat of a nova-compute that has just started."""
    # This is Nova's time format. Nova may still store a heartbeat of a killed
    # nova-compute. A server created before the new one is up would be an
    # interrupted build for it and go to ERROR for a while.
    begin = (datetime.datetime.now(datetime.UTC)
             + _LAST_WORD).isoformat()[:19]

    def beats():
        return any(service.updated_at and service.updated_at > begin
                   for service in cloud.connection.compute.services(
                       host=machine.host, binary='nova-compute'))

    steps.wait(f'a heartbeat of nova-compute of {machine.host} (its log: '
               f'{machine.log("nova-compute")})', beats, pause=1,
               clock=clock.Clock())


def image(cloud: clouds.Cloud, parts: built.Parts):
    """Return the image of servers on machines."""
    return resources.image(
        cloud.connection, IMAGE, parts.guest_linux, parts.guest_initramfs,
        os_command_line=guest.COMMAND_LINE, hw_machine_type='q35')


def up(cloud: clouds.Cloud, shown: steps.Steps, count: int = 1,
       prepare: Prepare = lambda _machine: None,
       equipment: machines.Equipment = devices.arguments,
       ) -> list[machines.Machine]:
    """Return machines that are compute nodes; power on missing ones.

    :param prepare: called for each new machine, as by `join`
    :param equipment: the devices of new machines
    """
    parts = built.load()
    made = [machines.Machine(number + 1, parts, equipment)
            for number in range(count)]
    new = [machine for machine in made if not machine.is_on]
    if new:
        with shown.step(f'power on {", ".join(each.host for each in new)}'):
            steps.at_once(*(machine.power_on for machine in new))
        image(cloud, parts)
        with shown.step('libvirt and nova-compute in machines'):
            steps.at_once(*(functools.partial(join, machine, cloud, prepare)
                            for machine in new))
    for machine in made:
        attach(machine, cloud)
    return made


def down(machine: machines.Machine, cloud: clouds.Cloud) -> None:
    """Remove a machine, its disk, and its records in Nova.

    A nova-compute without its old state does not start while Nova has a
    service of the same host name.
    """
    machine.crash()
    compute = cloud.connection.compute
    for service in list(compute.services(host=machine.host,
                                         binary='nova-compute')):
        # Nova deletes servers of a forced-down host without nova-compute.
        compute.update_service_forced_down(service, forced=True)
        leftovers.remove(cloud, machine.host)
        compute.delete_service(service)
    machine.discard()


@contextlib.contextmanager
def nodes(cloud: clouds.Cloud, shown: steps.Steps, count: int,
          prepare: Prepare = lambda _machine: None,
          equipment: machines.Equipment = devices.arguments,
          ) -> Iterator[list[machines.Machine]]:
    """Call `up`, and at the end remove machines that were not on before."""
    before = {number for number in range(1, count + 1)
              if machines.Machine(number, built.load()).is_on}
    made = up(cloud, shown, count, prepare, equipment)
    try:
        yield made
    finally:
        for machine in made:
            if machine.number not in before:
                down(machine, cloud)
