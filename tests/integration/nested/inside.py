# SPDX-License-Identifier: Apache-2.0
"""A nested machine seen from inside: its kernel's devices, its libvirt's."""

import dataclasses
import json
import pathlib
import shlex
from xml.etree import ElementTree

from tests.integration.machine import root

_FACTS = pathlib.Path(__file__).with_name('facts.py')
_INSTANCES = pathlib.PurePosixPath('/var/lib/nova/instances')


@dataclasses.dataclass(frozen=True, order=True)
class Function:
    """A PCI function as the machine's kernel knows it.

    :param ids: vendor and product, ``0x10de2330``
    :param card: the address of its physical function, or its own
    :param number: of a virtual function, from 1; 0 for none
    :param serial: its card's, in the capability of that name
    """

    ids: str
    driver: str
    card: str
    number: int
    serial: int | None


@dataclasses.dataclass(frozen=True, order=True)
class Mdev:
    """A mediated device; its parent is a PCI address."""

    parent: str
    type: str


class Inside:
    """What is in a machine.

    :param machine: tests.integration.machine.machine.Machine
    """

    def __init__(self, machine):
        self._machine = machine

    def look(self) -> tuple[dict[str, Function], dict[str, Mdev]]:
        """Functions by address, and mdevs by uuid."""
        said = json.loads(self._machine.run(
            'python3 -c ' + shlex.quote(_FACTS.read_text())))
        return ({address: Function(**facts) for address, facts
                 in said['functions'].items()},
                {uuid: Mdev(**facts) for uuid, facts in said['mdevs'].items()})

    def find(self, ids: str) -> str:
        """The address of the one card with these ids."""
        [address] = [address for address, function in self.look()[0].items()
                     if function.ids == ids and not function.number]
        return address

    def hostdevs(self, server: str, defined: bool = False) -> dict[str, str]:
        """Aliases by PCI address or mdev uuid of what a guest has.

        :param defined: as in its definition; otherwise as it runs
        """
        flag = ' --inactive' if defined else ''
        domain = ElementTree.fromstring(self._machine.run(
            f'virsh -q dumpxml {server}{flag}'))
        return {_address(element.find('source/address')):
                    element.find('alias').get('name')
                for element in domain.iterfind('devices/hostdev')}

    def console(self, server: str) -> str:
        """What a guest has said here.

        As in the file: who asks Nova has it read by a nova-compute that is as
        slow as the guest, and slows it down.
        """
        return self._machine.run(f'cat {_INSTANCES}/{server}/console.log',
                                 check=False)

    def domains(self) -> set[str]:
        """The uuids of all domains, running or not."""
        return set(self._machine.run('virsh -q list --all --uuid').split())

    def state(self, server: str) -> str:
        """A domain's, in libvirt's words."""
        return self._machine.run(f'virsh -q domstate {server}').strip()

    def disagreements(self) -> list[str]:
        """What ``nova-accel host check`` finds."""
        said = json.loads(self._machine.run(
            f'{root.NOVA}/bin/nova-accel -q host check -f json',
            check=False))
        return [f'{finding["Thing"]}: {finding["Reason"]}'
                for finding in said]


def _address(element) -> str:
    if element.get('uuid'):
        return element.get('uuid')
    domain, bus, slot, function = (int(element.get(part), 16) for part in
                                   ('domain', 'bus', 'slot', 'function'))
    return f'{domain:04x}:{bus:02x}:{slot:02x}.{function}'
