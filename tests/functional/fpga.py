# SPDX-License-Identifier: Apache-2.0
"""FPGAs that can be programmed through sysfs or by a vendor's command.

A bitstream is a text here: the word ``function`` and the id that the ports
show after programming. Programming any other text fails.
"""

import pathlib

import fixtures

from nova_accel.host import operations


def bitstream(function, padding=''):
    return f'function {function}\n{padding}'.encode()


class Kernel(fixtures.Fixture):
    """A kernel with FPGA managers, and a vendor's command.

    :param machine: directory with the files of a recording
    """

    def __init__(self, machine):
        self._machine = pathlib.Path(machine)
        #: The address of the card and the bitstream of each programming.
        self.programmed = []

    def _setUp(self):
        theirs = operations.write

        def write(path, text):
            path = pathlib.Path(path)
            if path.name == 'firmware':
                self._program(path.resolve().parent, text)
            else:
                theirs(path, text)

        self.useFixture(fixtures.MonkeyPatch(
            'nova_accel.host.operations.write', write))

    def _program(self, manager, name):
        """Program a bitstream as drivers/fpga/fpga-mgr.c does."""
        file = self._machine / 'lib/firmware' / name
        if not file.exists():
            (manager / 'state').write_text('firmware request error\n')
            raise FileNotFoundError(2, 'No such file or directory')
        content = file.read_bytes()
        card = next(path for path in manager.parents
                    if (path / 'vendor').exists())
        self.programmed.append((card.name, content))
        words = content.split()
        if words[:1] != [b'function']:
            (manager / 'state').write_text('write error\n')
            (manager / 'status').write_text('reconfig CRC error\n')
            raise OSError(22, 'Invalid argument')
        (manager / 'state').write_text('operating\n')
        (manager / 'status').write_text('')
        self.show(card.name, words[1].decode())

    def show(self, card, function):
        """Make all ports of a card show a function id."""
        devices = self._machine / 'sys/bus/pci/devices'
        for path in devices.iterdir():
            physfn = path / 'physfn'
            if card in (path.name, physfn.resolve().name):
                for afu_id in path.glob('fpga_region/*/dfl-port.*/afu_id'):
                    afu_id.write_text(f'{function}\n')

    def command(self, text):
        """Write a vendor's command, a shell script, and return its path.

        :param text: shell commands, in which ``$1`` is the card and ``$2`` the
            bitstream file; the shell function ``show`` programs the card
        """
        path = self._machine / 'program'
        path.write_text(f'''#!/bin/sh
show() {{
    read word function <$2
    for port in {self._machine}/sys/bus/pci/devices/${{1%.*}}.*/fpga_region/*/dfl-port.*; do
        echo $function >$port/afu_id
    done
    echo $1 >>{self._machine}/programmed
}}
{text}
''')  # noqa: E501
        path.chmod(0o755)
        return str(path)

    def by_command(self):
        """Return the card of each programming by the command, in order."""
        path = self._machine / 'programmed'
        return path.read_text().split() if path.exists() else []
