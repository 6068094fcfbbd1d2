# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a guest that NVIDIA's driver may let access each other directly.

In a virtual machine the driver sees other PCIe ports than those of the host.
It allows peer-to-peer transfers over PCIe only between GPUs that a PCI
capability assigns to one clique, a number from 0 to 15.

Source: hw/vfio/pci-quirks.c in QEMU's source, "The NVIDIA GPUDirect P2P Vendor
capability". QEMU does not start a guest that has a clique for a function of
another vendor or class.
"""

import collections

from nova_accel.core import hostdev
from nova_accel.core import model

#: QEMU's property of a device.
PROPERTY = 'x-nv-gpudirect-clique'

#: How many cliques there can be.
MOST = 16


def find(hostdevs: hostdev.Hostdevs, host: model.Host,
         ) -> dict[model.Address, int]:
    """Return the clique of each GPU that has a peer.

    Peers are whole NVIDIA GPUs behind one PCIe switch of the host. Virtual
    functions and mdevs are none.

    :param hostdevs: of one guest
    """
    functions = {function.address: function for function in host.functions}
    behind: dict[str, list[model.Address]] = collections.defaultdict(list)
    for device in hostdevs:
        function = functions.get(device.address)
        if (function and function.is_nvidia_gpu
                and function.location.switch):
            behind[function.location.switch].append(device.address)
    peers = [gpus for gpus in behind.values() if len(gpus) > 1]
    return {gpu: number for number, gpus in enumerate(peers[:MOST])
            for gpu in gpus}
