# SPDX-License-Identifier: Apache-2.0
"""The ``[nova_accel]`` options of nova.conf."""

import copy

from oslo_config import cfg

from nova_accel.core.device_spec import unsafe_host

GROUP = cfg.OptGroup(
    'nova_accel', title='Accelerators without an accelerator service',
    help='Which devices a compute node offers, and the profiles that servers '
         'ask for them by.')

#: Of oslo.privsep's contexts, which nova_accel.host.privileged registers.
PRIVILEGED = (
    cfg.OptGroup(
        'nova_accel_privileged', title='What nova_accel does as root',
        help="""
How nova-compute, and nobody else, does what only root can: resets, numbers of
virtual functions, taking a function from its driver. The options are
oslo.privsep's. Most hosts need none of them; ``helper_command`` is for those
where neither rootwrap nor ``sudo privsep-helper`` starts the helper.
"""),
    cfg.OptGroup(
        'nova_accel_privileged_admin',
        title='What needs CAP_SYS_ADMIN as well',
        help="""
Resets of all that is behind a bridge, mdevs, vGPU types; otherwise as
``[nova_accel_privileged]``.
"""),
    cfg.OptGroup(
        'nova_accel_privileged_program', title='What programs FPGAs',
        help="""
The helper reads ``device_spec`` and ``state_path`` itself, from the
configuration files that it is started with; only root may be able to write
them. Otherwise as ``[nova_accel_privileged]``.
"""))

#: The capabilities that each context keeps, by default.
CAPABILITIES = {
    'nova_accel_privileged': (),
    'nova_accel_privileged_admin': ('CAP_SYS_ADMIN',),
    'nova_accel_privileged_program': ('CAP_DAC_READ_SEARCH',),
}

OPTIONS = [
    cfg.MultiStrOpt(
        'device_spec', default=[],
        sample_default=['{"vendor_id": "10de", "product_id": "20b0", '
                        '"resource_class": "CUSTOM_GPU_A100", '
                        '"traits": ["CUSTOM_NVLINK"]}'],
        help="""
Devices that this compute node offers to servers. Used by nova-compute.

Nothing is offered unless an entry names it. Each value is a JSON object, or a
list of them; the option can be given several times, and the first entry that
matches a device is the one that counts. The keys are those of Nova's own
``[pci] device_spec`` where they mean the same:

``vendor_id``, ``product_id``
  Four hexadecimal digits; any if left out.
``address``
  A PCI address with ``*`` for parts that may be anything (``0000:81:*.*``), or
  an object with a regular expression for each of ``domain``, ``bus``,
  ``slot`` and ``function``. The whole address of a physical function also
  names its virtual functions.
``parent``
  In place of these: the name of a device that is on no PCI bus, as it is in
  ``/sys/class/mdev_bus``; with ``mdev_type``.
``resource_class``
  What Placement counts the device as; other text than a standard class
  becomes ``CUSTOM_...``. Default: ``CUSTOM_PCI_<vendor>_<product>``.
``traits``
  A list of names for Placement, or names with commas between them.
``num_vfs``
  How many virtual functions the named cards are to have, or ``all``; they are
  what is offered then. Their number is set when nova-compute starts, unless
  somebody uses one.
``reset``
  ``required`` (default): a device is offered only if it can be reset by itself
  before the next server has it. ``flr``, ``bus``: and it is reset in this way
  and no other. ``if_possible``: it is offered anyway.
``one_time_use``
  ``yes``: a whole device is for one server. Its resource provider, which has
  the trait ``HW_PCI_ONE_TIME_USE``, is reserved when a server gets it, until
  an operator sets ``reserved`` to 0. Default: ``no``.
``keeps_data``
  ``yes``: what a server writes to an NVMe disk may stay there for the next
  one. A disk is refused unless its entry has this or ``one_time_use``.
  Default: ``no``.
``mdev_type``
  Offer mediated devices of this type, ``nvidia-471``, of which the named
  devices are the parents, and not these devices themselves. One entry for
  each type; its class is ``VGPU`` by default. They are made when a server
  starts and removed when nobody has them.
``regions_file``
  A file that puts the named functions into regions: what goes together, how
  many can be had, what is broken.
``kind``
  What the entry is about, where none of its keys tells: a plugin's name.
  ``fpga``: regions of FPGAs; their class is ``FPGA`` by default, and what is
  programmed is a trait.
``vgpu_type``
  Offer virtual functions of an NVIDIA GPU as vGPUs of this type, where its
  driver makes no mdevs: a line of their ``nvidia/creatable_vgpu_types``,
  ``558 : NVIDIA A40-4Q``, or the number or the name alone. One entry for each
  type; its class is ``VGPU`` by default. The type is set when a server starts
  and cleared when nobody has the function.
``max_instances``
  With ``vgpu_type`` or ``mdev_type``: how many of them a card can have at the
  same time.
``program``, ``program_timeout``
  How a bitstream that a profile names is programmed into an FPGA region (an
  entry with it is of that kind): ``"fpga_manager"``, by the kernel's; or by a
  command, as a list of words, ``["/opt/x/program", "{address}",
  "{bitstream}"]``: ``{bitstream}`` is the file, ``{address}`` the card and
  ``{region}`` the region's number. After how many seconds it is killed
  (default: 300).
``live_migratable``
  ``yes``: the driver can move the device's state to another host (libvirt
  10.0.0 and QEMU 8.2.2 at least), so a server with it can be live-migrated.
  Default: ``no`` for devices, ``yes`` for mdevs.
``managed``
  ``yes`` (default): libvirt binds vfio-pci at the start of a guest and gives
  the device back to its driver at the end. ``no``: the device is already
  bound to the vfio driver that it needs, and is refused otherwise; so it is
  with ``vgpu_type``.

A device that the host itself uses, a bridge, and a device whose IOMMU group
also has functions that the same entry does not name, are refused;
``nova-accel host show`` says why. A device must not be named here and in
``[pci] device_spec``.
"""),
    cfg.ListOpt(
        'profile_dirs', default=['/etc/nova/device_profiles.d'],
        help="""
Directories of device profiles. Used by nova-api.

Each file whose name ends in .yaml, .yml or .json holds one or more profiles,
in nova_accel's format or exactly as Cyborg's API takes and gives them. Files
are read again when they change; one that cannot be read is reported, and its
last good content stays. Keep them the same on every nova-api.
"""),
    cfg.StrOpt(
        'link_domains', default='',
        help="""
File that says which cards are joined directly (NVLink, xGMI, UALink), for
profiles that ask for one ``link_domain``. Used by nova-compute.

YAML: ``partitions`` is a list of sets that can be had together as a whole
only, such as Fabric Manager's; ``islands`` of sets of which any part can. Each
has ``devices``, a list of cards by PCI address, and maybe a ``name``. What the
kernel shows of AMD's GPUs need not be there; of a card that is, the file
counts. It is read again when it changes. While it cannot be used, the log says
why, and cards that only it joins are taken for joined with none.
"""),
    cfg.IntOpt(
        'check_interval', default=600, min=0,
        help="""
Seconds between two comparisons of what servers hold (libvirt), what they were
promised (Placement) and what there is (sysfs); 0 switches them off. Used by
nova-compute, which also compares when it starts.

What disagrees is logged with its remedy, and units that somebody holds though
nobody was promised them are reserved in Placement. Nothing is taken from a
server. A comparison asks Placement once for each device and each class;
``nova-accel host check`` makes one at any time. After as many seconds a device
whose reset failed is tried again.
"""),
    cfg.BoolOpt(
        'pack_devices', default=True,
        help="""
Whether a server gets the devices of a host that leave the largest groups of
free ones whole: those that are joined by links, behind one PCIe switch, on one
NUMA node. Otherwise servers are spread over them. What a profile's affinity
says comes first. Used by nova-scheduler, and by nova-compute where a server is
forced onto it.
"""),
    cfg.FloatOpt(
        'accel_preferred_weight_multiplier', default=60.0,
        help="""
How much AcceleratorWeigher prefers, for a server with devices, the host where
the preferred rules of its profile are kept best. Used by nova-scheduler, where
``[filter_scheduler] weight_classes`` names
``nova_accel.scheduler.weigher.AcceleratorWeigher``.

A host on which they miss the least gets all of it, another at most half. Half
of the default is more than the other multipliers and Nova's own weighers say
together, so a server comes to a host that keeps its rules, if there is one.
With 0, hosts are chosen to keep large groups of free devices whole, and
nothing else. Aggregate
metadata of the same name goes first for the hosts of the aggregate.
"""),
    cfg.FloatOpt(
        'accel_pack_weight_multiplier', default=10.0,
        help="""
How much AcceleratorWeigher prefers, for a server with devices, the host where
fewest devices of those classes stay free. Used by nova-scheduler, where
``[filter_scheduler] weight_classes`` names
``nova_accel.scheduler.weigher.AcceleratorWeigher``.

A positive number packs servers onto few hosts, so that whole hosts stay free
for servers of many devices; a negative one spreads them; 0 is indifferent. The
default is more than Nova's own weighers say together, as a rule: they are
multiplied by 1 and prefer emptier hosts. Aggregate metadata of the same name
goes first for the hosts of the aggregate.
"""),
    cfg.FloatOpt(
        'accel_island_weight_multiplier', default=10.0,
        help="""
How much AcceleratorWeigher prefers, for a server with devices, the host where
they break up least of what lies together: islands and partitions of linked
devices, NUMA nodes, PCIe roots and switches, and cards of which parts are
given away. Used by nova-scheduler.

0 is indifferent; a negative number makes no sense but for trials. Aggregate
metadata of the same name goes first for the hosts of the aggregate.
"""),
    cfg.FloatOpt(
        'accel_avoid_weight_multiplier', default=10.0,
        help="""
How much AcceleratorWeigher prefers, for a server without devices, hosts that
offer none; among those that do, hosts of which less is free. Used by
nova-scheduler.

With the default, such servers come to hosts with devices only where no other
host has room. 0 is indifferent; a negative number fills hosts with devices
first. Aggregate metadata of the same name goes first for the hosts of the
aggregate.
"""),
    cfg.IntOpt(
        'max_bitstream_size', default=512, min=1,
        help="""
Largest bitstream, in MiB, that nova-compute fetches from Glance to program it
into an FPGA. It keeps them in ``nova_accel/bitstreams`` below ``state_path``.
"""),
    cfg.IntOpt(
        'bitstream_cache_size', default=4096, min=1,
        help="""
How many MiB all bitstreams that nova-compute keeps may have together. Those
that were used least recently are deleted for a new one, which is also done
where the disk would have less than ``reserved_host_disk_mb`` free. One that
was used in the last ten minutes stays. Let it be more than the servers of a
host use: when the host boots, nobody's token is there to fetch them with.
"""),
    cfg.BoolOpt(
        'set_address_bits', default=True,
        help="""
Whether a guest gets the physical address bits that the BARs of its devices
need, where its firmware could not give them addresses otherwise and neither
flavor nor image has ``hw:maxphysaddr_mode``. Used by nova-compute. If not, the
log has a warning that says what the flavor should.
"""),
    cfg.BoolOpt(
        'guest_numa_affinity', default=True,
        help="""
Show guests which of their NUMA cells each device belongs to. Used by
nova-compute.

A server whose flavor or image asks for NUMA cells gets its devices under root
buses (libvirt's ``pcie-expander-bus``) of the cells that they belong to, so
that software in it finds them near the right processors and memory. So it is
with machine types q35 and, on aarch64, virt; other guests have all devices on
one bus, whatever this says. It counts when a guest is defined: at boot, at a
hard reboot and after a move.
"""),
    cfg.BoolOpt(
        unsafe_host.OPTION, default=False,
        help="""
Whether devices are offered on a host that cannot keep guests apart from each
other and from itself. Used by nova-compute.

If not, a host offers mediated devices only while ``vfio_iommu_type1`` or
``iommufd`` has ``allow_unsafe_interrupts``, ``vfio`` has
``enable_unsafe_noiommu_mode``, or its kernel was booted with
``pcie_acs_override``. Servers keep what they have. Allow it only where all
guests are trusted as the host is.
"""),
    cfg.StrOpt(
        'sysfs_root', default='/sys',
        help="""
Where nova-compute reads what devices there are: /sys, a copy of it, or a file
that ``nova-accel host record`` wrote. Anything but /sys is for trials.
"""),
]


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Make the options known to a configuration; may be called again."""
    conf.register_group(GROUP)
    conf.register_opts(OPTIONS, group=GROUP)


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """For oslo-config-generator (entry point ``oslo.config.opts``)."""
    # Which only who lists options needs, and which brings much along.
    from oslo_privsep import priv_context
    listed = [(GROUP, OPTIONS)]
    for group in PRIVILEGED:
        options = copy.deepcopy(priv_context.OPTS)
        for option in options:
            if option.name == 'capabilities':
                option.sample_default = ','.join(CAPABILITIES[group.name])
        listed.append((group, options))
    return listed
