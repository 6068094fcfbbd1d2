# SPDX-License-Identifier: Apache-2.0
"""Remove from a recording what identifies its machine.

Only names and contents that come from the kernel are kept. Names are kept if
the reader asks for them, or if they match a pattern of the kernel or of
systemd's names by place; any other name gets an alias, the same everywhere.
Of the content of files, numbers and the kernel's words are kept.

Sources: Documentation/admin-guide/devices.txt (disks);
Documentation/ABI/testing/sysfs-class-net; systemd.net-naming-scheme(7);
rdma-core, kernel-boot/rdma_rename.c; drivers/fpga/fpga-mgr.c (states and
errors); Documentation/ABI/testing/sysfs-bus-vfio-mdev (types, ``device_api``).
"""

import collections.abc
import posixpath
import re
import uuid

from nova_accel.core import naming
from nova_accel.core.device_spec import reset_methods
from nova_accel.host import host_use
from nova_accel.host import link_domains
from nova_accel.host import tree as trees
from nova_accel.host import vfio
from nova_accel.host import zfs

# Directories and links on the paths that the reader asks for, and other
# entries of sysfs in these directories.
_WORDS = frozenset('''
    block btrfs bus class data devices driver drivers ext4 f2fs fpga_manager
    fpga_region fs holders infiniband iommu_group iommu_groups iommufd kernel
    kstat master mdev_bus mdev_supported_types module net node nvme
    nvme-subsystem parameters pci physfn platform proc run self spl sys system
    udev vfio vfio-dev vfio_iommu_type1 vfio_pci virtual xfs xgmi_hive_info zfs

    features has_cpu has_generic_initiator has_memory has_normal_memory online
    possible power stats subsystem uevent

    addr_assign_type addr_len address broadcast carrier carrier_changes
    carrier_down_count carrier_up_count dev_id dev_port device dormant duplex
    flags gro_flush_timeout ifalias ifindex iflink link_mode mtu
    name_assign_type napi_defer_hard_irqs netdev_group operstate phys_port_id
    phys_port_name phys_switch_id proto_down queues speed statistics testing
    threaded tx_queue_len type
'''.split())

_KERNEL = re.compile('|'.join((
    r'|\.\.?', r'\d{1,5}',
    # PCI functions and host bridges; names that end in a number.
    r'[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]',
    r'pci[0-9a-f]{4,8}:[0-9a-f]{2}',
    r'(node|vfio|virtio|ata|host|session|nvme|nvme-subsys|fpga|region)\d{1,5}',
    r'dfl-(fme|fme-mgr|fme-region|port)\.\d{1,5}',
    r'dfl-pci|mtty|mdpy|mbochs|matrix|[0-9a-f]\.[0-3]\.[0-9a-f]{4}',
    # Disks and partitions.
    r'target(\d{1,5}:){2}\d{1,5}|(\d{1,5}:){3}\d{1,5}',
    r'(sd|hd|vd|xvd|dasd)[a-z]{1,3}\d{0,3}',
    r'(nvme\d{1,4}(c\d{1,4})?n|dm-|md|mmcblk|loop|nbd|sr|fd|ram|zram|pmem|'
    r'bcache|rbd|drbd|zd|ublkb)\d{1,4}(p\d{1,3})?',
    # Network ports and RDMA devices, named by number or by place.
    r'lo|(eth|wlan|wwan|usb|ib|ibs|bond|br|virbr|docker|team|dummy|ifb|tun|tap|'
    r'veth|vnet|macvlan|macvtap|ipvlan|vxlan|sit|gre|tunl|ip6tnl|wg)\d{1,3}'
    r'(v\d{1,4})?',
    r'(mlx[45]_|hfi1_|qib|bnxt_re|irdma|i40iw|efa_|erdma_|mana_|hns_|qedr|'
    r'cxgb4_|ocrdma|usnic_|vmw_pvrdma|mthca|rxe|siw)\d{1,4}',
    r'(en|ib|sl|wl|ww|mc|roce|iw|opa|rdma)(P\d{1,5})?'
    r'(o\d{1,5}|s\d{1,4}|p\d{1,3}s\d{1,3})(f\d{1,3})?'
    r'(v\d{1,4}|r\d{1,4}|d\d{1,3}|np?\d{1,3}(s\d{1,3})?){0,2}',
    # Our aliases.
    r'name\d{1,6}(p\d{1,3})?',
    r'0{8}-0{4}-[45]0{3}-80{3}-0{6}[0-9a-f]{6}')))

# Patterns of the names in directories of drivers and of their mdev types.
_DRIVERS = {'drivers': re.compile(r'[\w-]{1,32}', re.ASCII),
            'mdev_supported_types': re.compile(
                r'[a-z]\w{0,31}-[\w.+-]{1,40}', re.ASCII)}

_UUID = re.compile(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}', re.IGNORECASE)

# The reader recognises these names by their prefix, which is kept.
_PREFIXED = re.compile(r'(upper_|lower_|dfl-port\.|dfl-fme\.)(.+)', re.DOTALL)
_PARTITION = re.compile(r'p?(\d{1,3})')

_DISK = re.compile(r'/dev/([^/]+)')
_DEVICE_NUMBER = re.compile(r'\d{1,5}:\d{1,7}')
# The documented values of pcie_acs_override.
_OVERRIDE = re.compile(r'[a-z_-]+(=(downstream|multifunction|'
                       r'id(:[0-9a-f]{4}){2}|,)*)?')

_NUMBER = re.compile(r'-?\d{1,10}|0x[0-9a-f]{1,16}|\d{1,5}:\d{1,7}')
_WORDS_OF_FILES = reset_methods.METHODS.union('''
    Y N vfio-pci vfio-ccw vfio-ap vfio-platform vfio-noiommu

    x86_64 aarch64 ppc64le s390x riscv64 loongarch64

    unknown power off up reset firmware request parse header write init
    complete operating error reconfig operation CRC incompatible image IP
    protocol fifo overflow
'''.split())
_ID = re.compile(r'[0-9a-f]{1,32}')
# drivers/pci/probe.c (pci_speed_string): "16.0 GT/s PCIe".
_SPEED = re.compile(r'\d{1,3}(\.\d)?|GT/s|PCIe|Unknown')
_FILES = {'afu_id': _ID, 'compat_id': _ID,
          'current_link_speed': _SPEED, 'max_link_speed': _SPEED,
          # drivers/base/node.c: ranges of CPUs, "0-3,8".
          'cpulist': re.compile(r'[\d,-]+', re.ASCII),
          'fw_ver': re.compile(r'[\d.]{1,32}'),
          # NVM Express Base Specification, Identify Controller: 8 bytes.
          'firmware_rev': re.compile(r'[\w.+-]{1,8}', re.ASCII),
          # A part number, "113-D67301-063", or a version.
          'vbios_version': re.compile(
              r'\d{3}-[A-Z\d]{1,10}-[A-Z\d]{1,6}|[\d.]{1,32}', re.ASCII)}
#: Replaces every other word of a file.
UNKNOWN = '?'


def anonymous(recording: trees.Recording,
              asked: collections.abc.Iterable[str],
              of_kinds: collections.abc.Iterable[str],
              ) -> trees.Recording:
    """Return an anonymous recording from which the reader reads the same Host.

    Only names differ.

    :param recording: the full recording
    :param asked: names of files that the reader asks for
    :param of_kinds: files, relative to a function's directory, whose content
        is kept, as only their kind knows what it can be
    """
    of_kinds = tuple(f'/{name}' for name in of_kinds)
    names = _Names(recording, _WORDS.union(
        asked, *(name.split('/') for name in of_kinds)))
    hives: dict[str, int] = {}

    def content(path: str, text: str) -> str:
        if path.endswith(of_kinds):
            return text
        if path.endswith(f'/{link_domains.HIVE_ID}'):
            # The ids are globally unique. The reader only compares them.
            return f'{hives.setdefault(text, len(hives) + 1)}\n'
        if path.startswith(f'{zfs.UDEV}/'):
            return _udev(text, names)
        if path in _TABLES:
            return _TABLES[path](text, names)
        return _attribute(posixpath.basename(path), text)

    return trees.Recording(
        {names.path(path): content(path, text)
         for path, text in sorted(recording.files.items())},
        {names.path(path): names.path(target)
         for path, target in sorted(recording.links.items())},
        map(names.path, recording.folders))


class _Names:
    """Map names of a recording to themselves or to aliases."""

    def __init__(self, recording: trees.Recording,
                 words: frozenset[str]):
        self._words = words
        paths = [path.split('/') for path in sorted({
            *recording.files, *recording.links, *recording.folders})]
        self._taken = {name for parts in paths for name in parts}
        self._aliases: dict[str, str] = {}
        # Below sys/block, a partition is recognised by its name, which starts
        # with the name of its disk. Keep that in the alias.
        for parts in paths:
            for disk, name in zip(parts, parts[1:], strict=False):
                self._add_partition(disk, name)

    def _add_partition(self, disk: str, name: str) -> None:
        match = name.startswith(disk) and _PARTITION.fullmatch(
            name, len(disk))
        if match and not self._is_kept(disk) and not self._is_kept(name):
            self._aliases.setdefault(name, f'{self.name(disk)}p{match[1]}')

    def path(self, path: str) -> str:
        parts = path.split('/')
        return '/'.join(self.name(name, above) for above, name
                        in zip(['', *parts], parts, strict=False))

    def name(self, name: str, above: str = '') -> str:
        """Return a name, or its alias.

        :param above: name of the directory that contains it
        """
        if self._is_kept(name) or (
                above in _DRIVERS and _DRIVERS[above].fullmatch(name)):
            return name
        if match := _PREFIXED.fullmatch(name):
            return match[1] + self.name(match[2])
        if name not in self._aliases:
            self._aliases[name] = self._alias(name)
        return self._aliases[name]

    def _is_kept(self, name: str) -> bool:
        return name in self._words or bool(_KERNEL.fullmatch(name))

    def _alias(self, name: str) -> str:
        number = len(self._aliases)
        while (alias := _uuid(name, number) if _UUID.fullmatch(name)
               else f'name{number}') in self._taken:
            number += 1
        self._taken.add(alias)
        return alias


def _uuid(text: str, number: int) -> str:
    # The version tells our mdevs from others: keep it.
    return str(uuid.UUID(int=number,
                         version=5 if naming.is_mdev_uuid(text) else 4))


def _attribute(name: str, text: str) -> str:
    allowed = _FILES.get(name, _NUMBER)
    return re.sub(r'\S+', lambda word: word[0] if allowed.fullmatch(word[0])
                  or word[0] in _WORDS_OF_FILES else UNKNOWN, text)


def _mounts(text: str, names: _Names) -> str:
    """Keep device number and disks: ``0 0 259:1 / / rw - fs /dev/sda1``."""
    lines = []
    for number, source in host_use.mounts(text):
        disks = ':'.join(_disks(source.split(':'), names))
        if not _DEVICE_NUMBER.fullmatch(number):
            number = '0:0'
        # File systems that are not on a disk have major number 0.
        if disks or not number.startswith('0:'):
            lines.append(f'0 0 {number} / / rw - fs {disks or "none"}')
    return _joined(lines)


def _disks(sources: collections.abc.Iterable[str], names: _Names,
           ) -> list[str]:
    """Return the disks directly in /dev; other paths may have unique ids."""
    return [f'/dev/{names.name(match[1])}' for match
            in map(_DISK.fullmatch, sources) if match]


def _mount_table(text: str, names: _Names) -> str:
    """Keep the disks: ``/dev/sda1 / fs rw``."""
    sources = dict.fromkeys(words[0] for words in host_use.fields(text))
    return _joined(f'{disk} / fs rw' for disk in _disks(sources, names))


def _udev(text: str, names: _Names) -> str:
    lines = text.splitlines()
    if zfs.MEMBER not in lines:
        return ''
    return _joined(
        line if line == zfs.MEMBER
        else zfs.LABEL + names.name(line.removeprefix(zfs.LABEL))
        for line in lines if line == zfs.MEMBER or line.startswith(zfs.LABEL))


def _command_line(text: str, names: _Names) -> str:
    return ' '.join(word if _OVERRIDE.fullmatch(word)
                    else word.partition('=')[0]
                    for word in vfio.acs_overrides(text)) + '\n'


def _swaps(text: str, names: _Names) -> str:
    return _joined(['Filename', *_disks(
        [words[0] for words in host_use.fields(text)[1:]], names)])


def _routes(text: str, names: _Names) -> str:
    ports = dict.fromkeys(words[0] for words in host_use.fields(text)[1:])
    return _joined(['Iface', *map(names.name, ports)])


def _addresses(text: str, names: _Names) -> str:
    ports = dict.fromkeys(words[-1] for words in host_use.fields(text))
    return _joined(f'{0:032x} 00 00 00 00 {names.name(port)}'
                   for port in ports)


def _joined(lines: collections.abc.Iterable[str]) -> str:
    return ''.join(f'{line}\n' for line in lines)


_TABLES = {
    **dict.fromkeys(host_use.MOUNTS, _mounts),
    **dict.fromkeys(host_use.TABLES, _mount_table),
    host_use.SWAPS: _swaps,
    vfio.COMMAND_LINE: _command_line,
    host_use.ROUTES: _routes,
    host_use.ADDRESSES: _addresses,
}
