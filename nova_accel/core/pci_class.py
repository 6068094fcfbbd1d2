# SPDX-License-Identifier: Apache-2.0
"""Names of PCI classes.

Source: PCI Code and ID Assignment Specification: base class and subclass.
"""

#: Base class.
BRIDGE = 0x06
#: Bridges to a bus of PCI or PCI Express.
PCI_BRIDGE = 0x0604

#: Base classes of the devices that NCCL and RCCL connect: network controllers,
#: display controllers (GPUs) and processing accelerators (other GPUs).
NCCL = frozenset({0x02, 0x03, 0x12})

#: Devices that are suggested even if no kind suggests an entry.
ACCELERATORS = {
    0x0300: 'VGA controller', 0x0302: '3D controller',
    0x0380: 'display controller', 0x0b40: 'co-processor',
    0x1000: 'network encryption', 0x1080: 'encryption',
    0x1200: 'processing accelerator',
}

#: Devices that servers use together with accelerators.
COMPANIONS = {
    0x0108: 'NVMe', 0x0200: 'Ethernet', 0x0207: 'InfiniBand',
    0x0280: 'network controller',
}

_OTHERS = {
    0x0100: 'SCSI', 0x0101: 'IDE', 0x0104: 'RAID', 0x0106: 'SATA',
    0x0107: 'SAS', 0x0403: 'audio', 0x0600: 'host bridge',
    0x0601: 'ISA bridge', PCI_BRIDGE: 'PCI bridge',
    0x0880: 'system peripheral', 0x0c03: 'USB', 0x0c05: 'SMBus',
    0x1101: 'performance counters',
}
_NAMES = {**ACCELERATORS, **COMPANIONS, **_OTHERS}


def name(class_code: int) -> str:
    """Return the name of a class.

    :param class_code: three bytes, the last is the programming interface
    """
    return _NAMES.get(class_code >> 8, f'class {class_code >> 8:04x}')
