# SPDX-License-Identifier: Apache-2.0
"""A nested machine: its power, console, shell and services."""

from collections.abc import Callable
import contextlib
import json
import pathlib
import shlex
import shutil
import socket
import subprocess

from tests.integration import place
from tests.integration.machine import built
from tests.integration.machine import clock
from tests.integration.machine import devices
from tests.integration.processes import Processes
from tests.integration.steps import Failure
from tests.integration.steps import run
from tests.integration.steps import wait

#: Returns QEMU's words for a machine's devices; takes a directory for files
#: and the machine's number.
Equipment = Callable[[pathlib.Path, int], list[str]]

#: MiB of memory, half of it on each of two NUMA nodes.
MEMORY = 3072
PROCESSORS = 2
#: MiB of QEMU's cache of translated code: the default if memory is plenty.
_CODE = 1024

#: Services of the machine in the order in which they start.
SERVICES = {
    'libvirtd': '/usr/sbin/libvirtd --listen',
    'nova-compute': '/srv/nova/bin/nova-compute',
}
#: The time limit in seconds of the machine's time. A boot usually takes ten.
_PATIENCE = 600

#: no_timer_check: on busy processors, the kernel's check finds no working
#: timer.
_APPEND = ('console=ttyS0 root=/dev/vda quiet loglevel=4 intel_iommu=on '
           'iommu=pt net.ifnames=0 mitigations=off nokaslr '
           'random.trust_cpu=1 tsc=reliable no_timer_check')
#: A thread for each processor is a little faster. But then QEMU 10.0
#: sometimes loses the end of an interrupt: an interprocessor interrupt
#: (vector 251) stays in service, and the processor gets no more interrupts,
#: not even the timer's.
_EMULATED = 'tcg,thread=single'
_UP = 'the machine is up'
#: On busy processors, a booting kernel may get no timer interrupts any more.
#: After 20 seconds it prints this text. The machine is then reset, up to this
#: many times.
_STALLED, _RESETS = 'rcu_preempt detected stalls', 3
_LOGS = pathlib.PurePosixPath('/var/log/machine')
_CONFIGURATION = pathlib.PurePosixPath('/etc/nova/nova.conf.d')


class Machine:
    """One of two machines, which have a network between them.

    :param number: 1 or 2
    :param parts: the files from which it runs
    :param equipment: returns the devices, like `devices.arguments`
    """

    def __init__(self, number: int, parts: built.Parts,
                 equipment: Equipment = devices.arguments):
        self.number = number
        #: The host name of the machine and of its compute service.
        self.host = f'{clock.MACHINE}{number}'
        #: Its address in the network between the machines.
        self.address = f'10.78.0.{number}'
        self._parts = parts
        self._equipment = equipment
        self._state = place.STATE / self.host
        self._logs = place.LOG / self.host
        place.make(place.RUN, self._state, self._logs)
        self._processes = Processes(place.RUN, place.LOG)
        self._ssh_port = 2200 + number
        self._monitor_port = 2300 + number
        #: Functions by service that wait until the service is ready.
        self.ready: dict[str, Callable[[], None]] = {
            'libvirtd': self._libvirt_answers}

    # As hardware.

    def power_on(self) -> None:
        """Power on the machine and start the services that ran before."""
        begin = self._console_size()
        disk = self._state / 'disk.qcow2'
        if not disk.exists():
            run('qemu-img', 'create', '-q', '-f', 'qcow2', '-F', 'raw', '-b',
                self._parts.disk, disk)
        self._processes.start(self.host, self._command(disk), {}, self._state)
        self._wait(begin)
        self._start_services()

    def power_off(self) -> None:
        """Shut the machine and its guests down, as an operator does."""
        self._quiesce()
        self._hang_up()
        self._processes.kill(self.host)

    def crash(self) -> None:
        """Power off the machine without a shutdown."""
        self._hang_up()
        self._processes.kill(self.host)

    def reboot(self) -> None:
        """Reboot the machine as an operator does, and start its services."""
        self._quiesce()
        self._hang_up()
        begin = self._console_size()
        self.monitor('system_reset')
        self._wait(begin)
        self._start_services()

    def discard(self) -> None:
        """Delete the machine's disk and the list of its services."""
        shutil.rmtree(self._state)
        place.make(self._state)

    def image(self, name: str) -> pathlib.Path:
        """Return the file with the blocks of an NVMe disk."""
        return devices.image_of(self._state, name)

    @property
    def is_on(self) -> bool:
        return self._processes.alive(self.host)

    def monitor(self, name: str, **arguments):
        """Send a QMP command to QEMU and return the answer.

        :param arguments: the command's arguments, with _ instead of -
        :raises Failure: with QEMU's error
        """
        arguments = {key.replace('_', '-'): value
                     for key, value in arguments.items()}
        with (socket.create_connection(('127.0.0.1', self._monitor_port), 300)
              as connection, connection.makefile('rw') as file):
            self._ask(file, 'qmp_capabilities', {})
            return self._ask(file, name, arguments)

    def _ask(self, file, name, arguments):
        # QEMU also sends a greeting and events.
        print(json.dumps({'execute': name, 'arguments': arguments}),
              file=file, flush=True)
        for line in file:
            answer = json.loads(line)
            if 'error' in answer:
                raise Failure(f'{self.host}: {name} {arguments}: '
                              + answer['error']['desc'])
            if 'return' in answer:
                return answer['return']
        raise Failure(f'{self.host}: {name}: QEMU ended; '
                      f'{self._processes.log(self.host)} may have the reason')

    def _command(self, disk):
        number, half = self.number, MEMORY // 2
        nodes = [('-object', f'memory-backend-ram,id=m{node},size={half}M',
                  '-numa', f'node,nodeid={node},cpus={node},memdev=m{node}')
                 for node in range(PROCESSORS)]
        append = (f'{_APPEND} machine.name={self.host} '
                  f'machine.address={self.address} '
                  f'machine.outside={_mac(0, number)} '
                  f'machine.link={_mac(1, number)}')
        return [
            self._parts.qemu, '-nodefaults', '-display', 'none',
            *(word for path in ('seabios', 'qemu')
              for word in ('-L', f'/usr/share/{path}')),
            '-machine', 'q35', '-accel', f'{_EMULATED},tb-size={_CODE}',
            '-cpu', 'max,la57=off', '-smp', f'{PROCESSORS},sockets=2',
            '-m', f'{MEMORY}', *(word for node in nodes for word in node),
            '-device', 'intel-iommu,intremap=on,caching-mode=on,'
            'device-iotlb=on',
            '-kernel', self._parts.linux, '-initrd', self._parts.initramfs,
            '-append', append,
            '-chardev', f'file,id=console,path={self._console},append=on',
            '-serial', 'chardev:console',
            '-qmp', f'tcp:127.0.0.1:{self._monitor_port},server=on,wait=off',
            '-drive', f'file={disk},if=none,id=root,cache=unsafe',
            '-device', 'virtio-blk-pci,drive=root,addr=02.0',
            '-netdev', 'user,id=outside,'
            f'hostfwd=tcp:127.0.0.1:{self._ssh_port}-:22',
            '-device', 'virtio-net-pci,netdev=outside,addr=03.0,romfile=,'
            f'mac={_mac(0, number)}',
            '-netdev', 'dgram,id=link,' + ','.join(
                f'{side}.type=inet,{side}.host=127.0.0.1,'
                f'{side}.port={2400 + which}'
                for side, which in (('local', number), ('remote',
                                                        3 - number))),
            '-device', 'virtio-net-pci,netdev=link,addr=04.0,romfile=,'
            f'mac={_mac(1, number)}',
            '-virtfs',
            f'local,path={self._logs},mount_tag=log,security_model=none',
            *self._equipment(self._state, number)]

    def _wait(self, begin):
        resets = 0

        def up():
            nonlocal begin, resets
            said = self._said()[begin:]
            if not self.is_on:
                raise _Over('QEMU ended: '
                            + self._processes.log(self.host).read_text())
            if 'Kernel panic' in said:
                raise _Over('its kernel panicked')
            if _STALLED in said and resets < _RESETS:
                resets += 1
                begin = self._console_size()
                self.monitor('system_reset')
                return False
            return _UP in said

        try:
            wait(f'{self.host} (its console: {self._console})', up, _PATIENCE,
                 clock=clock.Clock())
        except _Over as reason:
            raise Failure(f'{self.host}: {reason}; its console: '
                          f'{self._console}') from None

    @property
    def _console(self):
        return self._logs / 'console.log'

    def _said(self):
        try:
            return self._console.read_bytes().decode(errors='replace')
        except FileNotFoundError:
            return ''

    def _console_size(self):
        return len(self._said())

    # As a computer.

    def run(self, command: str, check: bool = True,
            seconds: float = _PATIENCE) -> str:
        """Run a shell command in the machine and return its stdout.

        :param check: raise Failure if the command fails
        :param seconds: the time limit in the machine's time
        :raises Failure: if the command fails or exceeds the time limit
        """
        with subprocess.Popen(
                [*self.ssh(), command], text=True, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, errors='replace') as process:
            said, error = self._end_of(process, command, seconds)
        if check and process.returncode:
            raise Failure(f'{self.host}: {command} ended with '
                          f'{process.returncode}: {said}{error}')
        return said

    def _end_of(self, process, command, seconds):
        passed = clock.Clock()
        while passed() < seconds:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.communicate(timeout=5)
        process.kill()
        raise Failure(f'{self.host}: {command}: not done after '
                      f'{seconds:.0f} s')

    def copy(self, local: pathlib.Path, remote: str) -> None:
        """Copy a file or directory into the machine."""
        run('scp', '-q', '-r', *self._ssh()[1:], local,
            f'root@127.0.0.1:{remote}')

    def write(self, remote: str, text: str) -> None:
        """Write a file in the machine and make its directory."""
        path = shlex.quote(remote)
        self.run(f'mkdir -p "$(dirname {path})" && '
                 f'printf %s {shlex.quote(text)} > {path}')

    def ssh(self) -> list[str]:
        """Return an ssh command line; append a command to run."""
        return [*self._ssh(), 'root@127.0.0.1']

    def _ssh(self):
        return ['ssh', '-F', 'none', '-i', str(self._parts.key), '-o',
                'BatchMode=yes', '-o', 'StrictHostKeyChecking=no', '-o',
                'UserKnownHostsFile=/dev/null', '-o', 'LogLevel=ERROR',
                '-o', 'ControlMaster=auto', '-o', 'ControlPersist=yes', '-o',
                f'ControlPath={self._state}/ssh', '-o',
                f'Port={self._ssh_port}']

    def _hang_up(self):
        """End the shared ssh connection, before the machine goes down."""
        subprocess.run([*self._ssh(), '-O', 'exit', 'root@127.0.0.1'],
                       capture_output=True)

    # Its services.

    def start(self, name: str) -> None:
        """Start a service and wait until it is ready."""
        program, *words = SERVICES[name].split()
        self.run(f'start-stop-daemon --start --oknodo --background '
                 f'--make-pidfile --pidfile /run/{name}.pid --output '
                 f'{_LOGS}/{name}.log --startas {program} -- '
                 + ' '.join(words))
        self._wanted(name).touch()
        self.ready.get(name, lambda: None)()

    def stop(self, name: str) -> None:
        self._end(name, 'TERM/30/KILL/5')
        self._wanted(name).unlink(missing_ok=True)

    def kill(self, name: str) -> None:
        """Send SIGKILL to a service."""
        self._end(name, 'KILL/5')
        self._wanted(name).unlink(missing_ok=True)

    def restart(self, name: str) -> None:
        self._end(name, 'TERM/30/KILL/5')
        self.start(name)

    def log(self, name: str) -> pathlib.Path:
        """Return the log of a service, which grows while it runs."""
        return self._logs / f'{name}.log'

    def configure(self, text: str) -> bool:
        """Write an additional configuration file of nova-compute.

        It replaces the text of an earlier call. nova-compute reads it at its
        start.

        :returns: whether the text differs from the earlier one
        """
        path = f'{_CONFIGURATION}/scenario.conf'
        before = self.run(f'cat {path}', check=False)
        self.write(path, text)
        return text != before

    def _end(self, name, schedule):
        self.run(f'start-stop-daemon --stop --oknodo --retry {schedule} '
                 f'--pidfile /run/{name}.pid --remove-pidfile', check=False)

    def _start_services(self):
        for name in SERVICES:
            if self._wanted(name).exists():
                self.start(name)

    def _wanted(self, name):
        """Return the file that marks a service to start after a boot."""
        return self._state / f'{name}.wanted'

    def _libvirt_answers(self):
        self.run('for i in $(seq 300); do virsh -q -c qemu:///system uri && '
                 'exit; sleep 0.2; done; exit 1')

    def _quiesce(self):
        """Stop services and guests, and sync the disk."""
        for name in reversed(SERVICES):
            self._end(name, 'TERM/30/KILL/5')
        self.run('pids=$(pidof qemu-system-x86_64) && kill $pids; '
                 'sync; echo u > /proc/sysrq-trigger; sleep 1', check=False)


class _Over(Exception):
    """A failure for which waiting does not help."""


def _mac(nic, number):
    return f'52:54:00:77:{nic:02x}:{number:02x}'
