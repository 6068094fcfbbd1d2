# SPDX-License-Identifier: Apache-2.0
"""The ``[nova_accel]`` options of nova.conf."""

import collections.abc
import contextlib
import copy
import glob
import logging
import os
import typing

from oslo_config import cfg
from oslo_config import iniparser

from nova_accel.core import errors
from nova_accel.core import unknown_options
from nova_accel.core.device_spec import cleaner
from nova_accel.core.device_spec import firmware_probe
from nova_accel.core.device_spec import policy as policies
from nova_accel.core.device_spec import strict
from nova_accel.core.device_spec import unsafe_host

GROUP = cfg.OptGroup(
    'nova_accel', title='Accelerators without an accelerator service',
    help='The devices that a compute node offers, and the device profiles '
         'with which servers request them.')

#: The contexts of oslo.privsep that nova_accel.host.privileged registers.
PRIVILEGED = (
    cfg.OptGroup(
        'nova_accel_privileged', title='What nova_accel does as root',
        help="""
Operations of nova-compute that need root: resetting devices, setting the
number of virtual functions, unbinding a function from its driver. The options
are those of oslo.privsep. Most hosts need none of them. Set ``helper_command``
where neither rootwrap nor ``sudo privsep-helper`` can start the helper.
"""),
    cfg.OptGroup(
        'nova_accel_privileged_admin',
        title='Operations that also need CAP_SYS_ADMIN',
        help="""
Resetting all devices behind a bridge, creating mdevs, setting vGPU types.
Otherwise as ``[nova_accel_privileged]``.
"""),
    cfg.OptGroup(
        'nova_accel_privileged_program',
        title='Programming of FPGAs, probes of firmware, fabric managers',
        help="""
The helper reads ``device_spec``, ``firmware_probe``, ``fabric_manager`` and
``state_path`` itself, from the configuration files that it is started with.
Only root may have write access to these files. Otherwise as
``[nova_accel_privileged]``.
"""),
    cfg.OptGroup(
        'nova_accel_privileged_clean', title='Cleaning of devices',
        help="""
The helper reads ``cleaner`` itself, from the configuration files that it is
started with. Only root may have write access to these files. It cleans
``thread_pool_size`` devices at the same time. Otherwise as
``[nova_accel_privileged]``.
"""))

#: The capabilities that each context keeps, by default.
CAPABILITIES = {
    'nova_accel_privileged': (),
    'nova_accel_privileged_admin': ('CAP_SYS_ADMIN',),
    'nova_accel_privileged_program': ('CAP_DAC_READ_SEARCH',),
    'nova_accel_privileged_clean': (),
}

OPTIONS = [
    cfg.MultiStrOpt(
        'device_spec', default=[], mutable=True,
        help="""
Devices that this compute node offers to servers. Used by nova-compute.

By default, no devices are offered. Each value is a JSON object or a list of
JSON objects, called entries. The option can be given several times. A device
is offered only if an entry matches it. If several entries match a device, the
first one applies. For example::

    device_spec = {"vendor_id": "10de", "resource_class": "CUSTOM_GPU"}

An entry must name devices, by ``vendor_id``, ``product_id``, ``address``,
``parent`` or ``regions_file``. One that matches all devices of the host is an
error.

Keys that Nova's own ``[pci] device_spec`` also has mean the same here:

``vendor_id``, ``product_id``
  Four hexadecimal digits; any if left out.
``address``
  A PCI address, in which ``*`` stands for any value of a part
  (``0000:81:*.*``), or an object with a regular expression for each of
  ``domain``, ``bus``, ``slot`` and ``function``. The complete address of a
  physical function also names its virtual functions.
``parent``
  Instead of the keys above: the name of a device that is not on a PCI bus, as
  listed in ``/sys/class/mdev_bus``. Requires ``mdev_type``.
``resource_class``
  The resource class of the device in Placement. A name that is not a standard
  class becomes ``CUSTOM_...``. Default: ``CUSTOM_PCI_<vendor>_<product>``.
``traits``
  Traits of the device in Placement: a list of names, or a string of names
  separated by commas.
``num_vfs``
  The number of virtual functions that the matching cards have, or ``all``.
  The virtual functions are then offered in place of the card. nova-compute
  sets their number when it starts, unless one of them is in use.
``reset``
  ``required`` (default): offer a device only if it can be reset, without other
  devices, before it is assigned to the next server. ``flr``, ``bus``: also use
  only this reset method. ``if_possible``: offer the device even if it cannot
  be reset.
``one_time_use``
  ``yes``: assign a whole device to one server only. Its resource provider has
  the trait ``HW_PCI_ONE_TIME_USE`` and is reserved as soon as a server gets
  the device, until an operator sets ``reserved`` to 0. Default: ``no``.
``clean``
  The name of the ``cleaner`` that cleans a device after each server. No other
  server gets the device before that.
``keeps_data``
  ``yes``: data that a server writes to an NVMe disk may stay on it when the
  next server gets the disk. A disk is refused unless its entry has this key,
  ``clean`` or ``one_time_use``. Default: ``no``.
``compare_firmware``
  ``no``: give the device to new servers even if its firmware has changed.
  Default: ``yes``.
``firmware_probe``
  The name of the ``firmware_probe`` that tells the firmware of the device.
  Default: only versions that sysfs shows are compared.
``mdev_type``
  Offer mediated devices of this type, such as ``nvidia-471``, instead of the
  matching devices, which are their parents. Write one entry for each type. The
  default resource class is ``VGPU``. A mediated device is created when a
  server starts, and removed when no server uses it.
``regions_file``
  A file that divides the matching functions into regions: which functions
  belong together, how many units are available, which ones are broken.
``kind``
  The kind of device, where no other key of the entry tells: the name of a
  plugin. ``fpga``: regions of FPGAs. Their default resource class is ``FPGA``,
  and the programmed function is a trait.
``vgpu_type``
  Offer virtual functions of an NVIDIA GPU as vGPUs of this type, for GPUs
  whose driver does not create mdevs. The value is a line of
  ``nvidia/creatable_vgpu_types``, such as ``558 : NVIDIA A40-4Q``, or only the
  number or the name. Write one entry for each type. The default resource class
  is ``VGPU``. The type is set when a server starts, and cleared when no server
  uses the function.
``max_instances``
  With ``vgpu_type`` or ``mdev_type``: the number of them that a card can have
  at the same time, if it has no others.
``gpu_instance``
  With a ``vgpu_type`` of MIG mode: the size of its GPU instances, such as
  ``1g.24gb``, if vGPUs of several types share them.
``program``, ``program_timeout``
  How to program the bitstream that a profile names into an FPGA region. An
  entry with this key is of the kind ``fpga``. ``"fpga_manager"``: use the
  FPGA manager of the kernel. Or a command as a list of words,
  ``["/opt/x/program", "{address}", "{bitstream}"]``: ``{bitstream}`` is the
  file, ``{address}`` the card and ``{region}`` the number of the region. The
  command is killed after ``program_timeout`` seconds (default: 300).
``live_migratable``
  ``yes``: the driver can transfer the state of the device to another host
  (requires libvirt 10.0.0 and QEMU 8.2.2), so that a server with the device
  can be live-migrated. Default: ``no`` for devices, ``yes`` for mdevs.
``managed``
  ``yes`` (default): libvirt binds the device to vfio-pci when a guest starts,
  and back to its own driver when the guest ends. ``no``: the device is already
  bound to the vfio driver that it needs, and is refused otherwise. With
  ``vgpu_type`` it is always ``no``.

These devices are refused: a device that the host itself uses, a bridge, and a
device in whose IOMMU group are functions that the same entry does not name.
``nova-accel host show`` prints the reason. Do not name a device both here and
in ``[pci] device_spec``.
"""),
    cfg.MultiStrOpt(
        'cleaner', default=[], mutable=True,
        help="""
Commands that clean devices between two servers, for the key ``clean`` of
``device_spec``. Used by nova-compute, which runs them as root.

Each value is a JSON object; the option can be given several times. For
example::

    cleaner = {"name": "nvme", "driver": "nvme",
               "clean": ["/usr/bin/nova-accel-nvme", "clean", "{address}"],
               "verify": ["/usr/bin/nova-accel-nvme", "verify", "{address}"]}

``name``
  With which entries name it.
``clean``
  The command that cleans a device, as a list of words, without a shell.
  ``{address}`` is the PCI address of the device (of the card, for a region of
  an FPGA), ``{region}`` the number of the region.
``verify``
  The command that checks that the device is clean.
``timeout``
  Seconds after which a command is killed. Default: 3600.
``driver``
  The driver of the host that the device is bound to meanwhile. Default: the
  one that it has.

A device is clean only if both commands end with 0. Otherwise no server gets it
before a cleaning succeeds. Only root may have write access to the commands,
and to the configuration files. The documentation has cleaners for NVMe disks
and FPGAs.
"""),
    cfg.MultiStrOpt(
        'firmware_probe', default=[], mutable=True,
        help="""
Commands that print the version of a device's firmware, for the key
``firmware_probe`` of ``device_spec``. Used by nova-compute, which runs them as
root.

Each value is a JSON object; the option can be given several times. For
example::

    firmware_probe = {"name": "nic", "command": ["/usr/sbin/devlink",
                      "dev", "info", "pci/{address}"]}

``name``
  With which entries name it: lower-case letters and digits.
``command``
  The command, as a list of words, without a shell. ``{address}`` is the PCI
  address of the device; of the card, for its virtual functions and mdevs.
``timeout``
  Seconds after which the command is killed. Default: 60; at most 100.

A command has to print the same as long as the firmware is the same. The last
4096 bytes count. If it prints nothing, or does not end with 0, no new server
gets the device. It runs before a new server gets a whole device, and every
``check_interval`` seconds while no server has it. Only root may have write
access to the commands, and to the configuration files.
"""),
    cfg.StrOpt(
        'fabric_manager', default='', mutable=True,
        help="""
How nova-compute asks the fabric manager of this host, which activates the
partitions of GPUs behind NVSwitches. Used by nova-compute, which runs the
commands as root.

The value is a JSON object, for example::

    fabric_manager = {"command": ["/usr/bin/fmpm"], "modules_command":
                      ["/usr/bin/nvidia-smi", "-q", "-x"]}

``manager``
  Its plugin. Default: fmpm, the command of NVIDIA's Fabric Manager.
``modules``
  The PCI address of the GPU on each module (the physical id of Fabric
  Manager): ``{"1": "0000:1b:00.0", ...}``.
``modules_command``
  The command that prints them, as a list of words, without a shell. It is run
  while the driver nvidia of the host has GPUs whose module is not known. The
  answer is kept in ``nova_accel/modules`` below ``state_path``, until the host
  has other GPUs. One of both keys is required. Where they do not agree, the
  partitions are not offered.
``command``
  The command fmpm, as a list of words, without a shell. Add ``"--hostname"``
  and an address if Fabric Manager does not listen on 127.0.0.1.
``timeout``
  Seconds after which a command is killed. Default: 60; at most 600. Commands
  that only list something have at most 10.

For the cards that the manager lists, its list replaces the file
``link_domains``. GPUs before H100 are refused. Only root may have write access
to the commands, and to the configuration files.
"""),
    cfg.ListOpt(
        'profile_dirs', default=['/etc/nova/device_profiles.d'],
        help="""
Directories of device profiles. Used by nova-api.

Each file whose name ends in .yaml, .yml or .json holds one or more profiles,
in the format of nova_accel or in the format of Cyborg's API. Files are read
again when they change. If a file cannot be read, the error is logged and the
last valid content stays in use. Keep the files identical on every nova-api.
"""),
    cfg.DictOpt(
        'moved_classes', default={}, mutable=True,
        help="""
Resource classes of devices that have become another class: pairs of the old
class and the new one. Used by nova-api, nova-scheduler and nova-compute; set
it to the same value for all of them. For example::

    moved_classes = CUSTOM_GPU_H100:CUSTOM_GPU,CUSTOM_GPU_A100:CUSTOM_GPU

Entries of ``device_spec`` have to give the new class to these devices, and a
trait with the name of the old class: ``CUSTOM_GPU_H100``. Flavors that still
ask for the old class get a device of the new class with this trait.
nova-compute changes the allocations and the flavors of the servers that have
such devices, while they run. Nova keeps the request of a server as it was, so
leave the option in nova.conf as long as there are servers that were created
before. ``nova-accel migrate class`` plans the change.
"""),
    cfg.StrOpt(
        'link_domains', default='', mutable=True,
        help="""
File that lists which cards are directly connected (NVLink, xGMI, UALink), for
profiles that request one ``link_domain``. Used by nova-compute.

The file is YAML. ``partitions`` is a list of sets that can be used only as a
whole, such as those of Fabric Manager. ``islands`` is a list of sets of which
any part can be used. Each set has ``devices``, a list of PCI addresses of
cards, and optionally a ``name``. Links between AMD GPUs that the kernel
reports need not be listed; for a card that is listed, the file takes
precedence. The file is read again when it changes. If it cannot be used, the
log says why, and cards that only the file connects count as not connected.
"""),
    cfg.IntOpt(
        'check_interval', default=600, min=0, mutable=True,
        help="""
Seconds between two audits, which compare the devices that servers hold
(libvirt), the allocations of servers (Placement) and the devices of the host
(sysfs). 0 turns the audits off. Used by nova-compute, which also runs an audit
when it starts.

Each inconsistency is logged with its remedy. Units that a server holds without
an allocation are reserved in Placement. An audit never removes a device from a
server. It sends Placement one request for each device and each resource class.
``nova-accel host check`` runs an audit at any time. A device whose reset
failed is reset again after the same interval.
"""),
    cfg.IntOpt(
        'health_max_fatal_errors', default=0, min=-1, mutable=True,
        help="""
How many fatal PCI Express errors (AER) a function may have within an hour. If
it has more, no new server gets the device until an hour without so many errors
is over. Servers that hold it keep it. -1: do not look at these errors. Used by
nova-compute, which counts the errors in each run of its periodic tasks.
"""),
    cfg.IntOpt(
        'health_max_nonfatal_errors', default=100, min=-1, mutable=True,
        help="""
As ``health_max_fatal_errors``, for errors that are neither corrected nor fatal
(non-fatal errors). The driver of a guest can cause a few of them.
"""),
    cfg.IntOpt(
        'health_max_correctable_errors', default=10000, min=-1, mutable=True,
        help="""
As ``health_max_fatal_errors``, for errors that the hardware corrects. The
default is ten times what a link with 16 lanes of 16 GT/s may have by the bit
error rate that PCI Express allows.
"""),
    cfg.BoolOpt(
        'health_check_link_width', default=True, mutable=True,
        help="""
Whether a device gets no new server while a link between it and its root port
has fewer lanes than both of its ends. Set it to false if slots have fewer
lanes than their ports report. Used by nova-compute.
"""),
    cfg.BoolOpt(
        'health_check_link_speed', default=False, mutable=True,
        help="""
As ``health_check_link_width``, for the speed of links. Most GPUs slow their
link down while they have nothing to do, so it is off by default.
"""),
    cfg.BoolOpt(
        'pack_devices', default=True, mutable=True,
        help="""
Whether devices are chosen on a host so that the largest groups of free devices
stay complete: devices that are connected by links, behind one PCIe switch, or
on one NUMA node. Otherwise servers are spread over these groups. The affinity
rules of a profile take precedence. Used by nova-scheduler, and by nova-compute
for a server that is forced to a host.
"""),
    cfg.BoolOpt(
        'explain_no_valid_host', default=True,
        help="""
Whether the owner of a server that gets no host learns which device or rule is
missing: ``No valid host was found. No host has 5 free CUSTOM_GPU_H100; the
most is 4``. Used by nova-scheduler, which sends one more request to Placement
if Placement finds no host.

The text has no hosts and no other servers, but it tells how many devices are
free in one place. If false, the text is Nova's own. The log has the reasons of
each host in either case.
"""),
    cfg.IntOpt(
        'shortlist_size', default=50, min=0, mutable=True,
        help="""
How many hosts Nova examines first for a server with devices. If more hosts
have enough free units, nova-scheduler ranks them by the rules of the profile
and by the multipliers ``accel_*_weight_multiplier``. Nova's filters and
weighers then examine this number of the best hosts, plus one for each server
of the request. If none of these passes the filters, they examine all hosts
that may have the devices. Used by nova-scheduler with AcceleratorFilter.

Nova takes some milliseconds for each host, so a request takes less time with
few of them. Weighers other than AcceleratorWeigher compare only these hosts.

With 0, Nova examines all hosts that Placement returns, at most ``[scheduler]
max_placement_results``. Otherwise nova-scheduler asks Placement for ten times
as many.
"""),
    cfg.FloatOpt(
        'accel_preferred_weight_multiplier', default=60.0, mutable=True,
        help="""
Multiplier with which AcceleratorWeigher prefers, for a server with devices,
the host that best meets the preferred rules of its profile. Used by
nova-scheduler, if ``[filter_scheduler] weight_classes`` names
``nova_accel.scheduler.weigher.AcceleratorWeigher``.

The host that violates the rules least gets the whole multiplier as its weight,
every other host at most half of it. Half of the default is more than the other
multipliers and Nova's own weighers add up to, so a host that meets the rules
is chosen if there is one. With 0, only the other multipliers count. The
metadata key of the same name of a host's aggregate takes precedence.
"""),
    cfg.FloatOpt(
        'accel_alternative_weight_multiplier', default=1000.0, mutable=True,
        help="""
Multiplier with which AcceleratorWeigher prefers, for a server whose profile
has alternatives (``any_of``), the host that has the first of them. Used by
nova-scheduler, if ``[filter_scheduler] weight_classes`` names
``nova_accel.scheduler.weigher.AcceleratorWeigher``.

A host with the second alternative is behind by the multiplier, one with the
third by twice the multiplier. The default is more than all other multipliers
add up to, except for Nova's ``build_failure_weight_multiplier``. 0 has no
effect. The metadata key of the same name of a host's aggregate takes
precedence.
"""),
    cfg.FloatOpt(
        'accel_pack_weight_multiplier', default=10.0, mutable=True,
        help="""
Multiplier with which AcceleratorWeigher prefers, for a server with devices,
the host on which the fewest devices of the requested resource classes stay
free. Used by nova-scheduler, if ``[filter_scheduler] weight_classes`` names
``nova_accel.scheduler.weigher.AcceleratorWeigher``.

A positive number packs servers onto few hosts, so that other hosts stay free
for servers with many devices. A negative number spreads servers. 0 has no
effect. The default is usually more than Nova's own weighers add up to: their
multiplier is 1, and they prefer emptier hosts. The metadata key of the same
name of a host's aggregate takes precedence.
"""),
    cfg.FloatOpt(
        'accel_island_weight_multiplier', default=10.0, mutable=True,
        help="""
Multiplier with which AcceleratorWeigher prefers, for a server with devices,
the host on which the chosen devices break up the fewest groups: islands and
partitions of linked devices, NUMA nodes, PCIe roots and switches, and cards
that are partly in use. Used by nova-scheduler.

0 has no effect. A negative number is useful only for tests. The metadata key
of the same name of a host's aggregate takes precedence.
"""),
    cfg.FloatOpt(
        'accel_domain_weight_multiplier', default=120.0, mutable=True,
        help="""
Multiplier with which AcceleratorWeigher prefers, for a server with
``same_domain``, the hosts of the host domain in which the most servers of its
server group, or of its request, can be. Used by nova-scheduler.

With the default, this matters more than the preferred affinity rules of the
profile. 0 has no effect. The metadata key of the same name of a host's
aggregate takes precedence.
"""),
    cfg.FloatOpt(
        'accel_avoid_weight_multiplier', default=10.0, mutable=True,
        help="""
Multiplier with which AcceleratorWeigher prefers, for a server without devices,
hosts that offer no devices, then hosts that have fewer free devices. Used by
nova-scheduler.

With the default, a server without devices gets a host with devices only if no
other host has room. 0 has no effect. A negative number fills hosts with
devices first. The metadata key of the same name of a host's aggregate takes
precedence.
"""),
    cfg.IntOpt(
        'max_bitstream_size', default=512, min=1, mutable=True,
        help="""
Largest bitstream, in MiB, that nova-compute downloads from Glance to program
it into an FPGA. Bitstreams are kept in ``nova_accel/bitstreams`` below
``state_path``.
"""),
    cfg.IntOpt(
        'bitstream_cache_size', default=4096, min=1, mutable=True,
        help="""
Size in MiB of all bitstreams together that nova-compute keeps. The least
recently used ones are deleted to make room for a new one, also when the disk
would have less than ``reserved_host_disk_mb`` free. A bitstream that was used
in the last ten minutes is not deleted. Choose a size larger than the
bitstreams that the servers of a host use: when the host boots, there is no
user token to download them with.
"""),
    cfg.BoolOpt(
        'set_address_bits', default=True, mutable=True,
        help="""
Whether a guest gets the number of physical address bits that the BARs of its
devices need, if its firmware could not map the BARs otherwise and neither the
flavor nor the image has ``hw:maxphysaddr_mode``. Used by nova-compute. If
false, a warning is logged that says what to set in the flavor.
"""),
    cfg.BoolOpt(
        'guest_numa_affinity', default=True, mutable=True,
        help="""
Whether guests see the NUMA cell of each of their devices. Used by
nova-compute.

If the flavor or the image of a server requests NUMA cells, each device is
placed below a root bus (``pcie-expander-bus`` in libvirt) of its cell, so that
software in the guest finds the processors and memory near the device. This
works with the machine types q35 and, on aarch64, virt. In other guests all
devices are on one bus, whatever the value. The value applies when a guest is
defined: at boot, at a hard reboot and after a move.
"""),
    cfg.IntOpt(
        'memory_allocation_threads', default=16, min=0, mutable=True,
        help="""
How many threads, at most, allocate the memory of a guest with devices when it
starts. Used by nova-compute.

It applies where all memory is allocated at the start: with huge pages
(``hw:mem_page_size``), and with ``[libvirt] file_backed_memory``. The guest
gets as many threads as it has CPUs, but no more than this number. The default
is the most that QEMU uses. A lower number leaves other guests more of the host
while a large one starts. With 0, QEMU chooses: since 7.1 it takes as many as
the guest has CPUs, before only one. Requires libvirt 8.2.0. If the definition
of the guest already has a number, that is kept.
"""),
    cfg.BoolOpt(
        'iommufd', default=False, mutable=True,
        help="""
Whether QEMU opens the PCI functions of guests with iommufd (``/dev/iommu`` and
``/dev/vfio/devices``), and not by their IOMMU groups. Used by nova-compute.

Requires libvirt 12.1.0, QEMU 9.0.0, and a kernel with ``CONFIG_IOMMUFD`` and
``CONFIG_VFIO_DEVICE_CDEV``. Where one of them is missing, guests start without
iommufd. The log of nova-compute then has the reason, and ``nova-accel-status
upgrade check`` names what the kernel lacks. The value applies when a guest is
defined: at boot, at a hard reboot and after a move.

Before Linux 6.19, and with QEMU 10.0 or older, the devices of a guest that
uses iommufd cannot access the memory of each other: no GPUDirect RDMA, and no
peer-to-peer transfers over PCIe. Guests whose GPUs have cliques therefore
never use it.
"""),
    cfg.BoolOpt(
        'guest_device_document', default=True, mutable=True,
        help="""
Whether guests can read a document that describes their devices. Used by
nova-compute.

The document has the group, the resource class, the place and the NUMA node of
each device. Guests read it without network, from the firmware configuration
(fw_cfg) of QEMU. Only x86 guests with ACPI get it, which are all that Nova
starts by default. The metadata service and the config drive describe the
devices whatever the value. It applies when a guest is defined: at boot, at a
hard reboot and after a move.
"""),
    cfg.BoolOpt(
        unsafe_host.OPTION, default=False, mutable=True,
        help="""
Whether devices are offered on a host that cannot isolate guests from each
other and from the host. Used by nova-compute.

If false, a host offers only mediated devices while one of these is true:
``vfio_iommu_type1`` or ``iommufd`` has ``allow_unsafe_interrupts``, ``vfio``
has ``enable_unsafe_noiommu_mode``, or the kernel was booted with
``pcie_acs_override``. Servers keep the devices that they have. Set it to true
only if all guests are trusted as much as the host.
"""),
    cfg.StrOpt(
        strict.OPTION, default=strict.STANDARD, mutable=True,
        choices=[
            (strict.STANDARD, 'devices are offered as their entries say'),
            (strict.STRICT, 'only devices of which nothing is left for the '
             'next server')],
        help="""
What this host requires of the devices that it offers, for clouds whose users
do not trust each other. Used by nova-compute.

With ``strict``, no new server gets

* a device whose reset is not known to be complete: its entry says
  ``if_possible``, or sysfs does not show the reset method;
* a mediated device or a vGPU, which only its driver resets;
* a disk or an FPGA whose entry names no cleaner (``clean``), except with
  ``one_time_use``; nor any device with ``keeps_data``;
* any device of a host that cannot isolate guests, whatever
  ``allow_unsafe_host`` says;
* a region of an FPGA of which a server of another project has a part.

``nova-accel host show --isolation strict`` shows which devices it refuses, and
why. The others have the trait ``CUSTOM_NOVA_ACCEL_STRICT``, which profiles can
require. Servers keep the devices that they have.
"""),
    cfg.StrOpt(
        'sysfs_root', default='/sys',
        help="""
Where nova-compute reads the devices of the host: /sys, a copy of it, or a file
that ``nova-accel host record`` wrote. Use values other than /sys for tests
only.
"""),
]


def policy(conf: cfg.ConfigOpts) -> policies.Policy:
    """Return what the options permit, beside ``device_spec``."""
    return policies.Policy(
        conf.nova_accel.allow_unsafe_host,
        cleaner.parse_all(conf.nova_accel.cleaner)[0], is_strict(conf),
        firmware_probe.parse_all(conf.nova_accel.firmware_probe)[0])


def is_strict(conf: cfg.ConfigOpts) -> bool:
    """Whether ``isolation`` is ``strict``."""
    return bool(conf.nova_accel.isolation == strict.STRICT)


def broken_commands(conf: cfg.ConfigOpts) -> list[errors.EntryError]:
    """Return what is wrong with ``cleaner`` and ``firmware_probe``."""
    return (cleaner.parse_all(conf.nova_accel.cleaner)[1]
            + firmware_probe.parse_all(conf.nova_accel.firmware_probe)[1])


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register the options; may be called more than once."""
    # ConfigOpts share what they know of a group, even values of options.
    conf.register_group(copy.deepcopy(GROUP))
    conf.register_opts(OPTIONS, group=GROUP)


def files(conf: cfg.ConfigOpts) -> collections.abc.Iterator[str]:
    """Yield the names of the files that oslo.config has read, in order."""
    # A program that only imports a plugin of ours may have read none.
    yield from getattr(conf, 'config_file', None) or ()
    for folder in conf.config_dirs or getattr(conf, 'config_dir', None) or ():
        yield from sorted(glob.glob(os.path.join(
            glob.escape(os.path.expanduser(folder)), '*.conf')))


def unknown(conf: cfg.ConfigOpts,
            ) -> collections.abc.Iterator[errors.AccelError]:
    """Yield an error for each option of ours that files set in vain."""
    for file in files(conf):
        sections: dict[str, dict[str, list[str]]] = {}
        # oslo.config has reported what is wrong with the file.
        with contextlib.suppress(OSError, ValueError, iniparser.ParseError):
            cfg.ConfigParser(os.path.expanduser(file), sections).parse()
        known = _known(conf, sections)
        yield from unknown_options.find(file, {
            name: options for name, options in sections.items()
            # Groups of a plugin.
            if name.lower() in known or name not in conf}, known)


def _known(conf: cfg.ConfigOpts, sections: collections.abc.Iterable[str],
           ) -> dict[str, set[str]]:
    """Return the options that exist by section.

    Those of oslo.privsep are left out unless one of its sections is asked for.
    """
    known: dict[str, set[str]] = {group.name: set() for group in PRIVILEGED}
    listed = (list_opts() if known.keys() & {*map(str.lower, sections)}
              else [(GROUP, OPTIONS)])
    for group, options in listed:
        known[group.name] = {
            name for option in options for name in (option.dest, *(
                old.name for old in option.deprecated_opts)) if name}.union(
            # A plugin may have registered others.
            conf[group.name] if group.name in conf else ())
    return known


def log_unknown(conf: cfg.ConfigOpts,
                log: logging.LoggerAdapter[typing.Any]) -> None:
    """Log the options of ours that do not exist; for the start of a service.

    :param log: the logger of the caller
    """
    for error in unknown(conf):
        log.warning('%s', error)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return all options, for the entry point ``oslo.config.opts``."""
    # Imported here, because services do not need it and it imports much.
    from oslo_privsep import priv_context
    listed = [(GROUP, OPTIONS)]
    for group in PRIVILEGED:
        options = copy.deepcopy(priv_context.OPTS)
        for option in options:
            if option.name == 'capabilities':
                option.sample_default = ','.join(CAPABILITIES[group.name])
        listed.append((group, options))
    return listed
