# SPDX-License-Identifier: Apache-2.0
"""Runs the commands that tell the firmware of devices.

They run in each round of the periodic tasks for devices that no server holds,
at most once in ``check_interval``; and before a server gets a device as a
whole, if none has run since another server had it.
"""

import collections.abc
import time

import nova.conf

from nova_accel import conf
from nova_accel.compute.state import node_state
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core.placement import inventory
from nova_accel.host import background
from nova_accel.host import operate

CONF = nova.conf.CONF


#: A device, and the name of the command that tells its firmware.
_Asked = tuple[model.Address, str]


class FirmwareProbes:
    """Runs the commands of ``[nova_accel] firmware_probe``."""

    def __init__(self, state: node_state.NodeState) -> None:
        self._claims = state.claims
        self._domains = state.domains
        self._local_host = state.local_host
        self._firmware = state.local_host.firmware
        self._runner = background.Runner()
        #: When a command was run for a device, in seconds, unless a server has
        #: had the device since.
        self._ran: dict[_Asked, float] = {}

    def run_due(self) -> None:
        """Ask for the firmware of devices that no server holds.

        It is done in a thread. If it takes long, the next round of the
        periodic tasks sees the outcome.
        """
        now, interval = time.monotonic(), CONF.nova_accel.check_interval
        probes = self._firmware.probes.items()
        # A device that was missing meanwhile may be another one.
        self._ran = {asked: when for asked, when in self._ran.items()
                     if asked in probes
                     and not (interval and now - when >= interval)}
        due = sorted(probes - self._ran.keys())
        in_use = self._claims.addresses_in_use() if due else ()
        due = [asked for asked in due if asked[0] not in in_use]
        if due:
            self._runner.run(lambda: self._run_all(due))

    def passes(self, hostdevs: hostdev.Hostdevs,
               here: inventory.NodeInventory) -> bool:
        """Whether a new server can have devices that it claims.

        Ask first for the firmware of those that were not asked since another
        server had them. It may take as long as the command may.

        :param here: what the compute node offers
        """
        # What domains hold stays, as the server may have had it before.
        addresses = {device.address for device in hostdevs
                     } - self._domains.holders().keys()
        cards = addresses.union(
            function.physfn for function in here.host.functions
            if function.address in addresses).union(
                device.card for device in hostdevs
                if device.address in addresses)
        for asked in sorted(self._firmware.probes.items()):
            if asked[0] in cards and asked not in self._ran:
                self._run(*asked)
            if asked[0] in addresses:
                # The server can change the firmware.
                self._ran.pop(asked, None)
        return cards.isdisjoint(self._firmware.withheld(here.host.functions))

    def _run_all(self, due: collections.abc.Iterable[_Asked]) -> None:
        for device, name in due:
            with self._claims.set_aside((device,)) as is_free:
                if is_free:
                    self._run(device, name)
        self._local_host.invalidate()

    def _run(self, device: model.Address, name: str) -> None:
        text = failure = ''
        try:
            probe = conf.policy(CONF).probes[name]
            text = operate.on(self._local_host.tree).probe_firmware(
                probe.text, str(device))
        except KeyError:
            failure = (f'its firmware is unknown: firmware_probe "{name}" is '
                       'not defined any more')
        except Exception as error:
            # The command has failed, or the helper that runs it.
            failure = (f'its firmware is unknown, firmware_probe "{name}": '
                       f'{str(error) or repr(error)}')
        self._ran[device, name] = time.monotonic()
        self._firmware.probed(device, name, text, failure)
