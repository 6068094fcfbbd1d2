# SPDX-License-Identifier: Apache-2.0
"""Where Devices are, as far as it matters for which of them go together."""

import dataclasses

from nova_accel.core import model

Links = model.Links


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a Device is.

    :param numa_node: None where the machine does not say
    :param pcie_root: the host bridge as sysfs names it, ``pci0000:40``
    :param pcie_switch: the nearest switch, by its upstream port
    :param device: the card's PCI address as text
    """

    numa_node: int | None
    pcie_root: str | None
    pcie_switch: str | None
    device: str
