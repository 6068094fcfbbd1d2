# SPDX-License-Identifier: Apache-2.0
"""Attack the privsep helpers, as a compromised nova-compute could.

Run as root, in a folder: start the helpers, drop privileges, try forbidden
operations, and print the outcome of each.
"""

import json
import os
import pathlib
import shlex
import sys

from oslo_config import cfg
from oslo_privsep import priv_context

from nova_accel.core.fabric import fmpm
from nova_accel.host import operations
from nova_accel.host import privileged

#: Address of a function that exists on no machine.
CARD = 'ffff:ff:1f.7'

_NOBODY = 65534
_HELPER = 'from oslo_privsep import daemon; daemon.helper_main()'


class Intruder:
    def __init__(self, place):
        self._place = pathlib.Path(place)
        self._home = self._place / 'nova'
        self.said = {}

    def prepare(self):
        """Create the files that root and nova-compute created."""
        (self._place / 'secret').write_text('secret')
        (self._place / 'secret').chmod(0o600)
        program = self._place / 'program'
        program.write_text(
            '#!/bin/sh\n'
            'echo $(cat "$1") $(id -u)\n')
        program.chmod(0o755)
        self._words = [str(program), '{bitstream}']
        (self._place / 'etc').mkdir()
        (self._place / 'etc/nova.conf').write_text(
            f'[DEFAULT]\nstate_path = {self._home}\n'
            '[nova_accel]\ndevice_spec = '
            + json.dumps({'address': CARD, 'program': self._words}) + '\n'
            + f'cleaner = {self._cleaner()}\n'
            f'firmware_probe = {self._probe()}\n'
            f'fabric_manager = {self._fabric_manager()}\n'
            '[nova_accel_privileged_program]\nhelper_command = '
            + shlex.join([sys.executable, '-c', _HELPER, '--config-file',
                          f'{self._place}/etc/nova.conf']) + '\n')
        attribute = (self._home / 'sys/bus/pci/devices' / CARD
                     / 'sriov_numvfs')
        attribute.parent.mkdir(parents=True)
        attribute.touch()
        (self._home / 'bits').write_text('bits')
        (self._home / 'bits').chmod(0o600)
        (self._home / 'link').symlink_to(self._place / 'secret')
        (self._home / 'folder').symlink_to(self._place)
        os.mkfifo(self._home / 'pipe')
        for path in (self._home, *self._home.rglob('*')):
            os.chown(path, _NOBODY, _NOBODY, follow_symlinks=False)
        self._home.chmod(0o700)
        cfg.CONF(['--config-file', f'{self._place}/etc/nova.conf'],
                 project='nova')

    def _probe(self, command='/usr/bin/id'):
        return json.dumps({'name': 'id', 'command': [command, '-u']})

    def _cleaner(self, command='/bin/true'):
        return json.dumps({'name': 'x', 'clean': [command],
                           'verify': ['/bin/true']})

    def _fabric_manager(self, command='/bin/echo'):
        return json.dumps({'command': [command], 'modules_command':
                           ['/bin/echo', 'modules']})

    def start_forks(self):
        privileged._CONFIGURATION = (f'{self._place}/etc',)
        self._pids = {}
        for name in ('context', 'program_context', 'clean_context'):
            before = _children()
            getattr(privileged, name).start(priv_context.Method.FORK)
            [self._pids[name]] = _children() - before
        self._become_nobody()
        # The attacker can change everything in this process.
        privileged._machine = operations.Operations(f'{self._home}/sys')
        privileged._configuration = cfg.ConfigOpts

    def start_command(self):
        privileged.program_context.start(priv_context.Method.ROOTWRAP)
        self._become_nobody()
        privileged._CONFIGURATION = ('/',)

    def try_all(self):
        self._program('programmed', self._words)
        self.said['capabilities'] = {
            name: _capabilities(pid) for name, pid in self._pids.items()}
        self._program('other command', [
            '/bin/sh', '-c', f'touch {self._place}/ran', '{bitstream}'])
        self._program('more words', [*self._words, '-v'])
        self._program('file of root', self._words, self._place / 'secret')
        self._program('file behind a link', self._words,
                      self._home / 'folder/secret')
        self._program('link', self._words, self._home / 'link')
        self._program('pipe', self._words, self._home / 'pipe')
        self._try('no device', privileged.clean, self._cleaner(), CARD, '0')
        self._try('other cleaner', privileged.clean,
                  self._cleaner(str(self._place / 'program')), CARD, '0')
        self._try('other probe', privileged.probe_firmware,
                  self._probe('/bin/ls'), CARD)
        self._try('other address', privileged.probe_firmware,
                  self._probe(), '--help')
        self.said['probed'] = privileged.probe_firmware(
            self._probe(), CARD)
        self._try('fabric manager', privileged.run_fabric_manager,
                  self._fabric_manager(), fmpm.ACTIVATE, [3])
        self._try('modules', privileged.read_modules, self._fabric_manager())
        for name, definition in (
                ('other fabric manager', self._fabric_manager('/bin/ls')),
                ('part of the fabric manager', self._fabric_manager()[:-1]),
                ('no fabric manager', '')):
            self._try(name, privileged.run_fabric_manager, definition,
                      fmpm.LIST)
        self._try('other modules', privileged.read_modules,
                  self._fabric_manager('/bin/ls'))
        self._try('other operation', privileged.run_fabric_manager,
                  self._fabric_manager(), '/etc/shadow', [])
        self._try('other partition', privileged.run_fabric_manager,
                  self._fabric_manager(), fmpm.ACTIVATE, ['/etc/shadow'])
        self._try('other sysfs', privileged.set_num_vfs, CARD, 1)
        self._try('other sysfs and manager', privileged.program_by_manager,
                  f'{self._home}/sys', 'fpga0', f'{self._home}/bits')

    def try_program(self):
        self._program('programmed', self._words)

    def _program(self, name, words, bitstream=None):
        self._try(name, privileged.program_by_command, words,
                  str(bitstream or self._home / 'bits'), CARD, '0', 10)

    def _try(self, name, function, *arguments):
        try:
            code, said = function(*arguments)
            self.said[name] = [code, said.decode()]
        except Exception as error:
            self.said[name] = f'{type(error).__name__}: {error}'

    def _become_nobody(self):
        os.setgid(_NOBODY)
        os.setgroups([])
        os.setuid(_NOBODY)
        if os.access(self._place / 'secret', os.R_OK):
            sys.exit('is still root')


def _children():
    return {int(pid) for task in pathlib.Path('/proc/self/task').iterdir()
            for pid in (task / 'children').read_text().split()}


def _capabilities(pid):
    [line] = [line for line in pathlib.Path(
        f'/proc/{pid}/status').read_text().splitlines()
        if line.startswith('CapEff')]
    return line.split()[1]


def main():
    intruder = Intruder(sys.argv[1])
    intruder.prepare()
    if sys.argv[2] == 'fork':
        intruder.start_forks()
        intruder.try_all()
    else:
        intruder.start_command()
        intruder.try_program()
    print(json.dumps(intruder.said))


if __name__ == '__main__':
    main()
