# SPDX-License-Identifier: Apache-2.0
"""Devices that one server has after another: a disk, an FPGA region."""

from collections.abc import Iterator
import contextlib
import json
import pathlib

from tests.integration.machine import root
from tests.integration.nested import card as cards
from tests.integration.nested import patience

_DFL = pathlib.Path(__file__).with_name('dfl.py')


class Slot:
    """A device, from a server to the next one.

    Its cleaner runs a tool, in whose place tests put a script.
    """

    #: The ids of its card, its entry in ``device_spec``, and its class.
    IDS = ''
    ENTRY = {}
    CLASS = ''
    CLEANER = {}
    #: The tool, and the first of its words when it cleans.
    TOOL = ''
    STEP = ''
    #: What a server finds of another one, if nothing cleans in between.
    WRITTEN = 0

    def __init__(self, tenant, machine, inside, offer):
        self._tenant = tenant
        self._machine = machine
        self._offer = offer
        self.address = inside.find(self.IDS)

    def offer(self, **changes):
        """Offer it with a cleaner, of which some keys differ."""
        cleaner = {'name': 'it', 'timeout': 900, **self.CLEANER, **changes}
        entry = {**self.ENTRY, 'resource_class': self.CLASS, 'clean': 'it'}
        self._offer(f'cleaner = {json.dumps(cleaner)}\n'
                    f'device_spec = {json.dumps(entry)}\n')

    def used(self, flavor: str | None = None) -> int:
        """Give it to a server once it is free, and delete that server.

        The server writes to it.

        :returns: what the server has found
        """
        self.wait_until_free()
        server = self._tenant.boot(self._machine.host, flavor=flavor,
                                   **{self.CLASS: 1})
        found = self._found_by(server)
        assert self.is_dirty
        server.delete()
        return found

    def _found_by(self, server) -> int:
        raise NotImplementedError

    @property
    def is_dirty(self) -> bool:
        """Whether QEMU has what a guest wrote."""
        raise NotImplementedError

    def prepare(self):
        """Do what has to be done before the first server."""

    def wait_until_free(self):
        def reserved():
            provider = self._tenant.ledger.device(self._machine.host,
                                                  self.address)
            return provider and provider.reserved
        patience.becomes('its reserved units', reserved, 0)

    def check_withheld(self):
        server = self._tenant.boot(self._machine.host, 'ERROR',
                                   **{self.CLASS: 1})
        assert 'No valid host' in server.view.fault['message']
        server.delete()

    def clean_again(self):
        self._tenant.cloud.run('openstack', 'accel', 'device', 'set',
                               '--clean',
                               f'{self._machine.host}/{self.address}')

    def put_instead(self, script):
        """Put a script in the place of the tool when it cleans."""
        self.put_back()
        self._machine.run(f'mv {self.TOOL} {self.TOOL}.moved')
        self._machine.write(
            self.TOOL, f'#!/bin/sh\ncase $1 in {self.STEP}) {script} ;; esac\n'
            f'exec {self.TOOL}.moved "$@"\n')
        self._machine.run(f'chmod +x {self.TOOL}')

    def put_back(self):
        self._machine.run(f'test ! -e {self.TOOL}.moved || '
                          f'mv {self.TOOL}.moved {self.TOOL}')


class Disk(Slot):
    """An NVMe disk, which is erased with nova-accel-nvme."""

    IDS = '0x80865845'
    ENTRY = {'vendor_id': '8086', 'product_id': '5845'}
    CLASS = 'CUSTOM_DISK'
    TOOL = '/usr/sbin/nvme'
    STEP = 'format'
    CLEANER = {'driver': 'nvme', **{
        step: [f'{root.NOVA}/bin/nova-accel-nvme', step, '{address}']
        for step in ('clean', 'verify')}}
    #: A guest writes to this many blocks.
    WRITTEN = 64
    #: As in machine/files/guest.c.
    _MARK = b'a guest wrote this'

    def _found_by(self, server):
        [disk] = patience.until('the guest has a disk',
                                lambda: server.guest().disks)
        assert disk.blocks == self.WRITTEN
        return disk.before

    @property
    def is_dirty(self):
        return self._MARK in self._machine.image('disk').read_bytes()


class Region(Slot):
    """The region of an FPGA, which is programmed with a vendor's tool."""

    IDS = '0x808609c4'
    ENTRY = {'vendor_id': '8086', 'product_id': '09c5', 'kind': 'fpga'}
    CLASS = 'FPGA'
    TOOL = '/usr/local/sbin/dfl.py'
    STEP = 'program'
    #: For the emulated card, a bitstream is the id of a function.
    BITSTREAM = b'some function ..'
    _BLANK, _FUNCTION = '/etc/nova/blank', '/etc/nova/function'
    CLEANER = {
        'clean': [TOOL, 'program', '{address}', _BLANK],
        'verify': [f'{root.NOVA}/bin/nova-accel-fpga', 'verify', '{address}',
                   '--region', '{region}']}
    WRITTEN = cards.Card.WRITTEN

    def _found_by(self, server):
        [device] = server.guest().devices
        return device.logic

    @property
    def is_dirty(self):
        return cards.Card(self._machine, 'pac').logic == self.WRITTEN

    def prepare(self):
        """Program a function: only that tells it from the blank region."""
        self._machine.run(f'head -c 16 /dev/zero > {self._BLANK}')
        self._machine.write(self._FUNCTION, self.BITSTREAM.decode())
        self._machine.run(
            f'{self.TOOL} program {self.address} {self._FUNCTION}')

    def offer_for_bitstreams(self):
        """Offer it without a cleaner."""
        entry = {**self.ENTRY, 'program': [
            self.TOOL, 'program', '{address}', '{bitstream}']}
        self._offer(f'device_spec = {json.dumps(entry)}\n')


@contextlib.contextmanager
def port(machine, address: str) -> Iterator[None]:
    """Make the port of an FPGA that of a virtual function.

    :param machine: tests.integration.machine.machine.Machine
    :param address: of the card
    """
    vfs = f'/sys/bus/pci/devices/{address}/sriov_numvfs'
    machine.copy(_DFL, Region.TOOL)
    machine.run(f'{Region.TOOL} release {address} && echo 1 > {vfs}')
    yield
    machine.run(f'echo 0 > {vfs} && {Region.TOOL} assign {address}')
