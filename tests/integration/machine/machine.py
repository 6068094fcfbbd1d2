# SPDX-License-Identifier: Apache-2.0
"""The machine: started, spoken to, and put an end to."""

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

#: Which devices a machine has: a folder for files, and its number.
Equipment = Callable[[pathlib.Path, int], list[str]]

#: MiB; half of it on each of two NUMA nodes.
MEMORY = 3072
PROCESSORS = 2
#: MiB of translated code, as QEMU has it by itself where memory is plenty.
_CODE = 1024

#: What runs in the machine, in the order in which it starts.
SERVICES = {
    'libvirtd': '/usr/sbin/libvirtd --listen',
    'nova-compute': '/srv/nova/bin/nova-compute',
}
#: Seconds of the machine's for what it does; it is there after ten.
_PATIENCE = 600

#: no_timer_check: where processors are busy, the kernel thinks that no timer
#: works.
_APPEND = ('console=ttyS0 root=/dev/vda quiet loglevel=4 intel_iommu=on '
           'iommu=pt net.ifnames=0 mitigations=off nokaslr '
           'random.trust_cpu=1 tsc=reliable no_timer_check')
#: In a thread for each processor it is a little faster, but QEMU 10.0 loses
#: the end of an interrupt at times: one of another processor's (vector 251)
#: stays in service, and the processor hears no other any more, nor a timer.
_EMULATED = 'tcg,thread=single'
_UP = 'the machine is up'
#: What a kernel says, after 20 seconds, that hears no timer any more, as one
#: may that boots where processors are busy. Then it is reset, so many times.
_STALLED, _RESETS = 'rcu_preempt detected stalls', 3
_LOGS = pathlib.PurePosixPath('/var/log/machine')
_CONFIGURATION = pathlib.PurePosixPath('/etc/nova/nova.conf.d')


class Machine:
    """One of two, which are joined by a network of their own.

    :param number: 1 or 2
    :param equipment: words for QEMU's command line, as those of
        `devices.arguments`
    """

    def __init__(self, number: int, parts: built.Parts,
                 equipment: Equipment = devices.arguments):
        self.number = number
        #: The name of the machine, and of its compute service.
        self.host = f'{clock.MACHINE}{number}'
        #: Where the other machine finds it.
        self.address = f'10.78.0.{number}'
        self._parts = parts
        self._equipment = equipment
        self._state = place.STATE / self.host
        self._logs = place.LOG / self.host
        place.make(place.RUN, self._state, self._logs)
        self._processes = Processes(place.RUN, place.LOG)
        self._ssh_port = 2200 + number
        self._monitor_port = 2300 + number
        #: What waits until a service that was started, by name, can be used.
        self.ready: dict[str, Callable[[], None]] = {
            'libvirtd': self._libvirt_answers}

    # As hardware.

    def power_on(self) -> None:
        """Start it, and what ran in it, and wait for that."""
        begin = self._console_size()
        disk = self._state / 'disk.qcow2'
        if not disk.exists():
            run('qemu-img', 'create', '-q', '-f', 'qcow2', '-F', 'raw', '-b',
                self._parts.disk, disk)
        self._processes.start(self.host, self._command(disk), {}, self._state)
        self._wait(begin)
        self._start_services()

    def power_off(self) -> None:
        """Shut it down as an operator does, its guests as well."""
        self._quiesce()
        self._hang_up()
        self._processes.kill(self.host)

    def crash(self) -> None:
        """Take its power away."""
        self._hang_up()
        self._processes.kill(self.host)

    def reboot(self) -> None:
        """Reboot it as an operator does; what ran in it runs again then."""
        self._quiesce()
        self._hang_up()
        begin = self._console_size()
        self.monitor('system_reset')
        self._wait(begin)
        self._start_services()

    def discard(self) -> None:
        """Forget what it wrote to its disk, and which services it had."""
        shutil.rmtree(self._state)
        place.make(self._state)

    @property
    def is_on(self) -> bool:
        return self._processes.alive(self.host)

    def monitor(self, name: str, **arguments):
        """What QEMU returns for a command of QMP.

        :param arguments: with _ in place of -
        :raises Failure: with its reason, if it refuses
        """
        arguments = {key.replace('_', '-'): value
                     for key, value in arguments.items()}
        with (socket.create_connection(('127.0.0.1', self._monitor_port), 300)
              as connection, connection.makefile('rw') as file):
            self._ask(file, 'qmp_capabilities', {})
            return self._ask(file, name, arguments)

    def _ask(self, file, name, arguments):
        # The greeting and events come on the way.
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
                      f'{self._processes.log(self.host)} may say why')

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
        """What a command in the machine, for its shell, says.

        :raises Failure: with what it says, if it fails and `check`, or if it
            takes longer than `seconds` of the machine's
        """
        with subprocess.Popen(
                [*self.ssh(), command], text=True, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, errors='replace') as process:
            said, error = self._end_of(process, command, seconds)
        if check and process.returncode:
            raise Failure(f'{self.host}: {command}: ended with '
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
        """Copy a file or a directory from outside into the machine."""
        run('scp', '-q', '-r', *self._ssh()[1:], local,
            f'root@127.0.0.1:{remote}')

    def write(self, remote: str, text: str) -> None:
        """Write a file of the machine, and its directory."""
        path = shlex.quote(remote)
        self.run(f'mkdir -p "$(dirname {path})" && '
                 f'printf %s {shlex.quote(text)} > {path}')

    def ssh(self) -> list[str]:
        """The words of a command that logs in, but for what it is to do."""
        return [*self._ssh(), 'root@127.0.0.1']

    def _ssh(self):
        return ['ssh', '-F', 'none', '-i', str(self._parts.key), '-o',
                'BatchMode=yes', '-o', 'StrictHostKeyChecking=no', '-o',
                'UserKnownHostsFile=/dev/null', '-o', 'LogLevel=ERROR',
                '-o', 'ControlMaster=auto', '-o', 'ControlPersist=yes', '-o',
                f'ControlPath={self._state}/ssh', '-o',
                f'Port={self._ssh_port}']

    def _hang_up(self):
        """End the connection that commands share, for its other end goes."""
        subprocess.run([*self._ssh(), '-O', 'exit', 'root@127.0.0.1'],
                       capture_output=True)

    # Its services.

    def start(self, name: str) -> None:
        """Start a service, and wait until it can be used."""
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
        """End a service without a word."""
        self._end(name, 'KILL/5')
        self._wanted(name).unlink(missing_ok=True)

    def restart(self, name: str) -> None:
        self._end(name, 'TERM/30/KILL/5')
        self.start(name)

    def log(self, name: str) -> pathlib.Path:
        """What a service says, as it says it."""
        return self._logs / f'{name}.log'

    def configure(self, text: str) -> bool:
        """Have this for a nova.conf, beside the one that there is.

        It takes the place of what was given before; nova-compute reads it
        when it starts.

        :returns: whether it is other than what was given before
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
        """A file that is there if a service is to run after a boot too."""
        return self._state / f'{name}.wanted'

    def _libvirt_answers(self):
        self.run('for i in $(seq 300); do virsh -q -c qemu:///system uri && '
                 'exit; sleep 0.2; done; exit 1')

    def _quiesce(self):
        """Services end, guests are gone, and the disk is complete."""
        for name in reversed(SERVICES):
            self._end(name, 'TERM/30/KILL/5')
        self.run('pids=$(pidof qemu-system-x86_64) && kill $pids; '
                 'sync; echo u > /proc/sysrq-trigger; sleep 1', check=False)


class _Over(Exception):
    """Not what waiting longer would help."""


def _mac(nic, number):
    return f'52:54:00:77:{nic:02x}:{number:02x}'
