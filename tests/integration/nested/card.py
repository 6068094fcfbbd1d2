# SPDX-License-Identifier: Apache-2.0
"""An emulated card, seen from the QEMU process that emulates it.

It shows what happened to the card without asking a kernel, libvirt or Nova.
"""

from tests.integration.machine import devices


class Card:
    """A card of a machine.

    :param machine: tests.integration.machine.machine.Machine
    :param name: the device's id in QEMU
    """

    #: The value that a guest writes into the registers below.
    WRITTEN = 0xcafe0001

    def __init__(self, machine, name: str):
        self._machine = machine
        self._name = name

    @property
    def scratch(self) -> int:
        """The scratch register: a guest writes it, a reset clears it."""
        return self._get('scratch')

    @property
    def logic(self) -> int:
        """The word in an FPGA's logic: only programming clears it."""
        return self._get('logic')

    @property
    def resets(self) -> int:
        """How often the card was reset since the machine was powered on."""
        return self._get('resets')

    def stick(self, stuck: bool) -> None:
        """Set whether the card stops answering after its next reset."""
        self._machine.monitor('qom-set', path=self._path, property='stuck',
                              value=stuck)

    def unplug(self) -> None:
        """Request a hot-unplug of the card."""
        self._machine.monitor('device_del', id=self._name)

    def plug(self) -> None:
        """Hot-plug the card into the slot it had."""
        self._machine.monitor('device_add', **devices.arguments_of(
            self._name, self._machine.number))

    @property
    def _path(self) -> str:
        return f'/machine/peripheral/{self._name}'

    def _get(self, name: str) -> int:
        return self._machine.monitor('qom-get', path=self._path,
                                     property=name)
