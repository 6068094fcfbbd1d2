# SPDX-License-Identifier: Apache-2.0
"""An emulated card as the QEMU that emulates it knows it.

That is outside of the machine: what is asked here, no kernel, libvirt or Nova
has a part in.
"""

from tests.integration.machine import devices


class Card:
    """A card of a machine's.

    :param machine: tests.integration.machine.machine.Machine
    :param name: what QEMU calls the device
    """

    #: What a guest writes into its scratch register.
    WRITTEN = 0xcafe0001

    def __init__(self, machine, name: str):
        self._machine = machine
        self._name = name

    @property
    def scratch(self) -> int:
        """The register that a guest writes into; a reset clears it."""
        return self._get('scratch')

    @property
    def resets(self) -> int:
        """How often it was reset since the machine was switched on."""
        return self._get('resets')

    def stick(self, stuck: bool) -> None:
        """Have it answer no more after its next reset; or answer again."""
        self._machine.monitor('qom-set', path=self._path, property='stuck',
                              value=stuck)

    def unplug(self) -> None:
        """Ask the machine to let go of it."""
        self._machine.monitor('device_del', id=self._name)

    def plug(self) -> None:
        """Put it back where it was."""
        self._machine.monitor('device_add', **devices.arguments_of(
            self._name, self._machine.number))

    @property
    def _path(self) -> str:
        return f'/machine/peripheral/{self._name}'

    def _get(self, name: str) -> int:
        return self._machine.monitor('qom-get', path=self._path,
                                     property=name)
