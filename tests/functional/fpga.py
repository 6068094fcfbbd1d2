# SPDX-License-Identifier: Apache-2.0
"""FPGAs that do what the kernel's and a vendor's do when programmed.

A bitstream is a text here: ``function`` and the id that its ports show when
it has been programmed; anything else cannot be programmed.
"""

import pathlib

import fixtures

from nova_accel.host import operations


def bitstream(function, padding=''):
    return f'function {function}\n{padding}'.encode()


class Kernel(fixtures.Fixture):
    """An FPGA manager's ``firmware`` attribute, and a vendor's command.

    :param machine: the directory that has the sysfs
    """

    def __init__(self, machine):
        self._machine = pathlib.Path(machine)
        #: Name of the card and content, for each time.
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
        """As drivers/fpga/fpga-mgr.c does it."""
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
        """Have all ports of a card show a function."""
        devices = self._machine / 'sys/bus/pci/devices'
        for path in devices.iterdir():
            physfn = path / 'physfn'
            if card in (path.name, physfn.resolve().name):
                for afu_id in path.glob('fpga_region/*/dfl-port.*/afu_id'):
                    afu_id.write_text(f'{function}\n')

    def command(self, text):
        """A vendor's command: a file for the shell.

        :param text: in which ``$1`` is the card and ``$2`` the bitstream;
            ``show`` programs it
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
        """The cards that the command programmed, for each time."""
        path = self._machine / 'programmed'
        return path.read_text().split() if path.exists() else []
