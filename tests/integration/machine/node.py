# SPDX-License-Identifier: Apache-2.0
"""A machine as a compute node of the cloud that is outside of it."""

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

#: Until then Nova can write down a sign of a nova-compute that was killed.
_LAST_WORD = datetime.timedelta(seconds=5)

#: What is otherwise with a machine than with the cloud's own compute node.
#: What it offers is not here: scenarios say that.
_CONFIGURATION = '''\
[DEFAULT]
my_ip = {address}
reserved_host_memory_mb = 256
# So that a guest may be asked to end, by its power button.
shutdown_timeout = 60
# All is slower in emulation.
rpc_response_timeout = 180
report_interval = 5
[libvirt]
# The machine's processors are emulated, with their extension for guests: a
# guest is emulated no more than the machine is.
virt_type = kvm
live_migration_inbound_addr = {address}
live_migration_scheme = tcp
[workarounds]
# Of an emulated processor, what a guest gets is not all that libvirt says it
# could have, and to Nova even equal machines differ. libvirt compares as well.
skip_cpu_compare_on_dest = true
'''


def join(machine: machines.Machine, cloud: clouds.Cloud,
         prepare: Prepare) -> None:
    """Have a machine that is on be a compute node, and wait until it is.

    :param prepare: what is to be done before nova-compute starts
    :raises Failure: if it does not become one
    """
    machine.write('/etc/nova/nova.conf', configuration.render(
        'nova/nova.conf', bin=f'{root.NOVA}/bin', host=machine.host,
        state='/var/lib',
        # As on any compute node: it asks nova-conductor.
        databases=''))
    machine.write('/etc/nova/nova.conf.d/machine.conf',
                  _CONFIGURATION.format(address=machine.address))
    machine.run('mkdir -p /var/lib/nova/instances /var/lib/nova/lock')
    prepare(machine)
    attach(machine, cloud)
    machine.start('libvirtd')
    machine.start('nova-compute')
    # Its service is there before the scheduler knows to which cell it belongs.
    steps.wait(f'{machine.host} among the hypervisors', lambda: any(
        hypervisor.name == machine.host
        for hypervisor in cloud.connection.compute.hypervisors()), pause=1,
               clock=clock.Clock())


def attach(machine: machines.Machine, cloud: clouds.Cloud) -> None:
    """Have the machine's nova-compute waited for where it is started."""
    machine.ready['nova-compute'] = functools.partial(_beats, machine, cloud)


def _beats(machine, cloud):
    """Wait until Nova hears of a nova-compute that was started just now."""
    # As Nova writes it. Of one that was killed, the last word can be written
    # down after that; servers that come then are interrupted builds to the
    # new one, and in ERROR for a while.
    begin = (datetime.datetime.now(datetime.UTC)
             + _LAST_WORD).isoformat()[:19]

    def beats():
        return any(service.updated_at and service.updated_at > begin
                   for service in cloud.connection.compute.services(
                       host=machine.host, binary='nova-compute'))

    steps.wait(f'a sign of the nova-compute of {machine.host} (its log: '
               f'{machine.log("nova-compute")})', beats, pause=1,
               clock=clock.Clock())


def image(cloud: clouds.Cloud, parts: built.Parts):
    """The image of servers in the machine."""
    return resources.image(
        cloud.connection, IMAGE, parts.guest_linux, parts.guest_initramfs,
        os_command_line=guest.COMMAND_LINE, hw_machine_type='q35')


def up(cloud: clouds.Cloud, shown: steps.Steps, count: int = 1,
       prepare: Prepare = lambda _machine: None,
       equipment: machines.Equipment = devices.arguments,
       ) -> list[machines.Machine]:
    """Machines that are compute nodes: those that are on, and new ones.

    :param prepare: what is to be done with new ones, as for `join`
    :param equipment: the devices of new ones
    """
    parts = built.load()
    made = [machines.Machine(number + 1, parts, equipment)
            for number in range(count)]
    new = [machine for machine in made if not machine.is_on]
    if new:
        with shown.step(f'power on {", ".join(each.host for each in new)}'):
            steps.at_once(*(machine.power_on for machine in new))
        image(cloud, parts)
        with shown.step('libvirt and nova-compute in there'):
            steps.at_once(*(functools.partial(join, machine, cloud, prepare)
                            for machine in new))
    for machine in made:
        attach(machine, cloud)
    return made


def down(machine: machines.Machine, cloud: clouds.Cloud) -> None:
    """Put an end to a machine, what it wrote, and what Nova knows of it.

    Who starts anew under a name that Nova knows is taken for somebody who has
    forgotten who it is, and does not start.
    """
    machine.crash()
    compute = cloud.connection.compute
    for service in list(compute.services(host=machine.host,
                                         binary='nova-compute')):
        # What is left there, Nova deletes without it then.
        compute.update_service_forced_down(service, forced=True)
        leftovers.remove(cloud, machine.host)
        compute.delete_service(service)
    machine.discard()


@contextlib.contextmanager
def nodes(cloud: clouds.Cloud, shown: steps.Steps, count: int,
          prepare: Prepare,
          equipment: machines.Equipment = devices.arguments,
          ) -> Iterator[list[machines.Machine]]:
    """As `up`; machines that were not on before are gone at the end."""
    before = {number for number in range(1, count + 1)
              if machines.Machine(number, built.load()).is_on}
    made = up(cloud, shown, count, prepare, equipment)
    try:
        yield made
    finally:
        for machine in made:
            if machine.number not in before:
                down(machine, cloud)
