# SPDX-License-Identifier: Apache-2.0
"""Prepares the devices of a guest: those of the host, and its fabric."""

from nova_accel.compute.devices import device_config
from nova_accel.compute.devices import fabric_partitions
from nova_accel.compute.devices import prepare
from nova_accel.compute.state import node_state
from nova_accel.core import hostdev
from nova_accel.core import model


class GuestDevices:
    """Prepares the devices of guests."""

    def __init__(self, state: node_state.NodeState,
                 preparation: prepare.Preparation,
                 fabric: fabric_partitions.FabricPartitions) -> None:
        self._state = state
        self._preparation = preparation
        self._fabric = fabric

    def prepare(self, hostdevs: hostdev.Hostdevs, instance=None,
                context=None, host: model.Host | None = None) -> None:
        """Prepare the devices of a guest.

        :param instance: if its guest is about to start. Its flavor tells what
            to program
        :param context: of the request, if there is one
        :param host: the Host, if it has just been read
        :raises errors.AccelError: if a device cannot be prepared
        """
        if hostdevs:
            self._preparation.prepare(
                hostdevs, self._state.node(), device_config.DeviceConfigs(
                    context, instance, self._state), host)
        if instance is not None:
            self._fabric.activate(instance.uuid, hostdevs)

    def check(self, hostdevs: hostdev.Hostdevs) -> None:
        """Check that no device is missing.

        :raises errors.AccelError: which names the device
        """
        self._preparation.check(hostdevs, self._state.node())
