# SPDX-License-Identifier: Apache-2.0
"""Places and links of a host's devices, rebuilt from traits in Placement.

nova-compute tells the scheduler the same in a string
(:mod:`nova_accel.core.placement.host_summary`). Programs that see only
Placement's API read it from the traits of the devices' providers
(:mod:`nova_accel.core.placement.device_traits`).
"""

import collections
import collections.abc

from nova_accel.core import model
from nova_accel.core.placement import device_traits


def place(properties: device_traits.Properties, device: str) -> model.Place:
    """Return the place of a device.

    :param device: its PCI address, or another name that is unique in its host
    """
    node = properties.place.get('numa_node', '')
    return model.Place(
        int(node) if node.isdecimal() else None,
        properties.place.get('pcie_root'), properties.place.get('pcie_switch'),
        device)


def links(devices: collections.abc.Mapping[str, device_traits.Properties],
          ) -> model.Links:
    """Return the link domains of a host.

    A partition can have devices that Placement does not show: refused ones,
    or missing ones. Names that no device has stand for them, because a
    partition can only be used as a whole.

    :param devices: by the name that the place of each device has
    """
    partitions, islands = (collections.defaultdict(set) for _kind in range(2))
    sizes = {}
    for name, properties in sorted(devices.items()):
        for number in properties.islands:
            islands[number].add(name)
        for number, size in properties.partitions.items():
            partitions[number].add(name)
            sizes[number] = size
    return model.Links(
        tuple(frozenset((*members, *(
            f'{number}.{missing}'
            for missing in range(sizes[number] - len(members)))))
            for number, members in sorted(partitions.items())),
        tuple(frozenset(members)
              for _number, members in sorted(islands.items())),
        frozenset(name for name, properties in devices.items()
                  if properties.is_faulty))
