# SPDX-License-Identifier: Apache-2.0
"""Devices of a nested machine, according to its kernel and its libvirt."""

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
    """A PCI function according to the machine's kernel.

    :param ids: vendor and product id, for example ``0x10de2330``
    :param card: the address of a VF's PF, otherwise the function's own
    :param number: the number of a VF, from 1; otherwise 0
    :param serial: the card's Device Serial Number
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
    """Queries to the kernel, libvirt and nova-accel of a machine.

    :param machine: tests.integration.machine.machine.Machine
    """

    def __init__(self, machine):
        self._machine = machine

    def look(self) -> tuple[dict[str, Function], dict[str, Mdev]]:
        """Return the PCI functions by address and the mdevs by UUID."""
        said = json.loads(self._machine.run(
            'python3 -c ' + shlex.quote(_FACTS.read_text())))
        return ({address: Function(**facts) for address, facts
                 in said['functions'].items()},
                {uuid: Mdev(**facts) for uuid, facts in said['mdevs'].items()})

    def find(self, ids: str) -> str:
        """Return the address of the only card with these ids."""
        [address] = [address for address, function in self.look()[0].items()
                     if function.ids == ids and not function.number]
        return address

    def hostdevs(self, server: str, defined: bool = False) -> dict[str, str]:
        """Return a domain's hostdevs: aliases by PCI address or mdev UUID.

        :param defined: use the persistent definition, not the running guest's
        """
        flag = ' --inactive' if defined else ''
        domain = ElementTree.fromstring(self._machine.run(
            f'virsh -q dumpxml {server}{flag}'))
        return {_address(element.find('source/address')):
                    element.find('alias').get('name')
                for element in domain.iterfind('devices/hostdev')}

    def console(self, server: str) -> str:
        """Return a guest's console on this host.

        This reads the file itself. A request to Nova would make the slow
        nova-compute of this machine read it.
        """
        return self._machine.run(f'cat {_INSTANCES}/{server}/console.log',
                                 check=False)

    def config_drive(self, server: str) -> str:
        """Return the metadata on a server's config drive."""
        return self._machine.run(
            f'isoinfo -R -i {_INSTANCES}/{server}/disk.config '
            '-x /openstack/latest/meta_data.json')

    def domains(self) -> set[str]:
        """Return the UUIDs of all domains, running or not."""
        return set(self._machine.run('virsh -q list --all --uuid').split())

    def state(self, server: str) -> str:
        """Return a domain's state, in libvirt's words."""
        return self._machine.run(f'virsh -q domstate {server}').strip()

    def disagreements(self) -> list[str]:
        """Return the inconsistencies that ``nova-accel host check`` finds."""
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
