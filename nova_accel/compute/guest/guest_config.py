# SPDX-License-Identifier: Apache-2.0
"""Completes the libvirt configuration of a guest, one step after the other.

Seam: ``nova.virt.libvirt.config.LibvirtConfigGuest``, which Nova's
``_get_guest_config`` returns.
"""

import collections.abc
import dataclasses

from nova.virt.libvirt import config as libvirt_config
from nova.virt.libvirt import host as libvirt_host

from nova_accel.compute import allocator
from nova_accel.compute import instance_request
from nova_accel.compute import nonfatal
from nova_accel.compute.guest import address_bits
from nova_accel.compute.guest import gpu_cliques
from nova_accel.compute.guest import hostdev_xml
from nova_accel.compute.guest import iommufd
from nova_accel.compute.guest import memory_threads
from nova_accel.compute.guest import pci_buses
from nova_accel.compute.state import node_state
from nova_accel.core import hostdev
from nova_accel.core import naming
from nova_accel.core.guest import pcie_topology
from nova_accel.core.placement import inventory


@dataclasses.dataclass(frozen=True)
class Guest:
    """A guest with devices of ours, before its domain is defined.

    :param config: as Nova made it; the steps change it
    :param instance: nova.objects.Instance
    :param held: its devices
    :param here: what the compute node offers, empty if it is unreadable
    :param nova_host: Nova's connection to libvirt
    """

    config: libvirt_config.LibvirtConfigGuest
    instance: object
    held: hostdev.Hostdevs
    here: inventory.NodeInventory
    nova_host: libvirt_host.Host


def _add_hostdevs(guest: Guest) -> None:
    hostdev_xml.add(guest.config, guest.held, pci_buses.add(
        guest.config, pcie_topology.locate(guest.held, guest.here.host,
                                           guest.here.by_uuid),
        guest.here.host,
        instance_request.of(guest.instance).guest_switches))


def _set_address_bits(guest: Guest) -> None:
    with nonfatal.step('set physical address bits of a guest'):
        address_bits.fit(guest.config, guest.held, guest.here.host,
                         guest.nova_host, guest.instance)


def _add_gpu_cliques(guest: Guest) -> None:
    with nonfatal.step('tell a guest which GPUs are peers'):
        gpu_cliques.add(guest.config, guest.held, guest.here.host,
                        guest.nova_host, guest.instance)


def _use_iommufd(guest: Guest) -> None:
    with nonfatal.step('let QEMU open devices with iommufd'):
        iommufd.use(guest.config, guest.nova_host, guest.instance)


def _set_memory_threads(guest: Guest) -> None:
    with nonfatal.step('set how many threads allocate memory'):
        memory_threads.set_number(guest.config, guest.nova_host,
                                  guest.instance)


#: The steps for a guest with devices, in this order.
STEPS: tuple[collections.abc.Callable[[Guest], None], ...] = (
    _add_hostdevs, _set_address_bits, _add_gpu_cliques, _use_iommufd,
    _set_memory_threads)


class GuestConfig:
    """Adds to a guest's configuration what its devices need."""

    def __init__(self, state: node_state.NodeState,
                 allocator: allocator.Allocator,
                 nova_host: libvirt_host.Host) -> None:
        self._state = state
        self._allocator = allocator
        self._nova_host = nova_host

    def complete(self, config: libvirt_config.LibvirtConfigGuest,
                 instance) -> None:
        """Complete the configuration that Nova made for a guest."""
        claims = self._state.claims
        with claims.operation(instance):
            if claims.get(instance) is None:
                self._allocator.for_restart(instance)
            held = claims.get(instance) or ()
            self._remove_mdevs(config, instance, held)
            if held:
                here, _unreadable = self._state.read_or_empty(cached=True)
                guest = Guest(config, instance, held, here, self._nova_host)
                for step in STEPS:
                    step(guest)

    def _remove_mdevs(self, config, instance, held) -> None:
        """Remove our mdevs, which Nova has found in the old XML."""
        addresses = {device.address for device in held}

        def is_ours(address):
            return address in addresses or naming.is_mdev_of(
                str(address), instance.uuid, self._state.node().ours)

        config.devices = [element for element in config.devices
                          if not hostdev_xml.holds(element, is_ours)]
