# SPDX-License-Identifier: Apache-2.0
"""Check whether a unit can be offered, whatever its kind is.

No other program claims it, the host does not use it, and IOMMU groups, the
smallest isolated sets, are not split. A check raises ``kind.Refused`` with the
reason and a remedy.
"""

import collections
import collections.abc
import functools
import itertools

from nova_accel.core import errors
from nova_accel.core import held_devices
from nova_accel.core import hostdev
from nova_accel.core import kind as kinds
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.device_spec import machine as machines
from nova_accel.core.device_spec import policy as policies
from nova_accel.core.device_spec import reset_methods
from nova_accel.core.device_spec import spec_entry
from nova_accel.core.device_spec import strict
from nova_accel.core.device_spec import together
from nova_accel.core.device_spec import unsafe_host
from nova_accel.core.device_spec import virtual_functions

#: Why functions are withheld, by address.
Withheld = collections.abc.Mapping[
    model.Address, collections.abc.Sequence[model.Withheld]]

#: The functions of a unit.
Functions = collections.abc.Sequence[model.Function]

#: The widest PCI domain that libvirt's XML and Nova's PCI tables hold.
MAX_DOMAIN = 0xffff

# PCI Code and ID Assignment Specification: a non-volatile memory controller,
# and a bridge of another kind than the specification has.
_DISK, _SWITCH = 0x0108, 0x0680

#: What helps without IOMMU groups, by architecture as the kernel names it.
_NO_IOMMU = {
    'x86_64': 'switch the IOMMU on in the firmware, and with intel_iommu=on '
              'or amd_iommu=on on the kernel command line',
    'aarch64': 'switch the SMMU on in the firmware; nothing helps on a board '
               'without an SMMU for its PCI devices',
    'ppc64le': 'boot a kernel with CONFIG_SPAPR_TCE_IOMMU',
    's390x': 'boot a kernel with CONFIG_S390_IOMMU',
}

_DENIED = ('vfio-pci has it on its denylist, for faults that a guest could '
           'make use of', 'load vfio-pci with disable_denylist=1 if the '
           'guests can be trusted, or take it out of device_spec')

#: About a function with the host's console: offered, but never suggested.
CONSOLE = 'the console of the host is on it, or may be'


class WithheldUnit(kinds.Refused):
    """Raised about a unit that is offered again once its state is over."""

    def __init__(self, withheld: collections.abc.Sequence[model.Withheld],
                 address: model.Address | None) -> None:
        super().__init__(
            '; '.join(why.reason for why in withheld),
            '; '.join(dict.fromkeys(why.remedy for why in withheld
                                    if why.remedy)), address)
        self.states = tuple(dict.fromkeys(why.state for why in withheld))


class UnitChecks:
    """The checks of the units of one machine.

    :param problems: gets what an operator should know of units that pass

    The other parameters are those of ``discovery.offer``.
    """

    def __init__(self, machine: machines.Machine, problems: list[str],
                 foreign: collections.abc.Sequence[spec_entry.Claim],
                 withheld: Withheld,
                 held: collections.abc.Callable[[], held_devices.Held],
                 hazards: collections.abc.Sequence[unsafe_host.Hazard],
                 policy: policies.Policy, architecture: str) -> None:
        self._machine = machine
        self._functions = machine.functions
        self._named = machine.named
        self._problems = problems
        self._foreign = foreign
        self._withheld = withheld
        self._ask_held = held
        self._hazards = hazards
        self._policy = policy
        self._architecture = architecture

    @functools.cached_property
    def _hostdevs(self) -> hostdev.Hostdevs:
        return tuple(device for _uuid, device in held_devices.each(
            self._ask_held()))

    @functools.cached_property
    def _held(self) -> collections.abc.Set[model.Address]:
        return {device.address for device in self._hostdevs}

    @functools.cached_property
    def _lost(self) -> dict[model.Address, list[hostdev.Hostdev]]:
        """Held mdevs that a reboot of the host has removed, by card."""
        there = {uuid for function in self._functions.values()
                 for mdev_type in function.mdev_types
                 for uuid in mdev_type.instances}
        lost: dict[model.Address, list[hostdev.Hostdev]] = (
            collections.defaultdict(list))
        for device in self._hostdevs:
            if device.card and str(device.address) not in there:
                lost[device.card].append(device)
        return lost

    def check_named(self, function: model.Function,
                    entry: spec_entry.Entry) -> None:
        """Check a function that an entry names, before its kind is asked."""
        self._check_card(function)
        self._check_fabric(function, entry)
        self._check_num_vfs(function, entry)

    def _check_card(self, function: model.Function) -> None:
        if function.physfn and function.physfn not in self._functions:
            raise kinds.Refused(f'its physical function {function.physfn} is '
                                'not there')

    def _check_fabric(self, function: model.Function,
                      entry: spec_entry.Entry) -> None:
        """Refuse a switch of the host's fabric that an entry takes as well.

        NVSwitches have the vendor of the GPUs, and serve the host's Fabric
        Manager.
        """
        if function.class_code >> 8 == _SWITCH and not entry.names_product:
            raise kinds.Refused(
                f'it is of class {_SWITCH:04x}, as NVSwitches are, and '
                f'{entry.label} names no product', 'add the product_id of the '
                'devices that servers shall have to the entry')

    def _check_num_vfs(self, function: model.Function,
                       entry: spec_entry.Entry) -> None:
        """Refuse what an entry with num_vfs names, except VFs of its cards."""
        if not entry.num_vfs:
            return
        card = model.card_of(function, self._functions)
        if card and not entry.matches(card):
            raise kinds.Refused(
                f'{entry.label} says num_vfs, and names virtual functions but '
                f'not their card {card.address} ({card.ids})',
                'name the card')
        if not function.physfn and not function.total_vfs:
            raise kinds.Refused(
                f'{entry.label} says num_vfs, and it can have no virtual '
                'functions', 'name devices more narrowly, or switch SR-IOV '
                'on in the firmware')
        if not function.physfn and virtual_functions.wanted(
                function, entry) > function.total_vfs:
            raise kinds.Refused(
                f'{entry.label} says num_vfs {entry.num_vfs}, and it can have '
                f'{function.total_vfs}', 'write a number that it can have, or '
                '"all"')
        if not function.physfn:
            raise kinds.Refused(
                f'{entry.label} says num_vfs, and it has no virtual functions',
                'restart nova-compute, which sets their number when it '
                'starts; its log says why it cannot')

    def check_unit(self, unit: model.Unit, pool: kinds.Pool,
                   entry: spec_entry.Entry) -> None:
        """Check a unit of a Pool that an entry names."""
        functions = [self._functions[address] for address in unit]
        if entry.one_time_use:
            _check_whole_device(pool, functions)
        if entry.clean:
            self._check_cleaner(pool, entry)
        self._check_probe(entry)
        self._check_lost(pool, functions[0])
        if pool.mdevs:
            self._check_parent(functions[0])
        else:
            self._check_functions(unit, functions, pool, entry)
        # Last, as such a unit would be offered otherwise.
        self._check_withheld(functions, strict.refusal(
            unit, self._functions, pool, entry, self._hazards)
            if self._policy.strict else None)

    def _check_cleaner(self, pool: kinds.Pool,
                       entry: spec_entry.Entry) -> None:
        if pool.mdevs:
            raise kinds.Refused(
                'its entry says clean, and nothing is left of a mediated '
                'device that could be cleaned', 'take clean out of its entry')
        if entry.clean not in self._policy.cleaners:
            raise kinds.Refused(
                f'its entry names the cleaner {errors.quote(entry.clean)}, '
                'which this host does not have', 'define it with [nova_accel] '
                'cleaner in the configuration of this host')

    def _check_probe(self, entry: spec_entry.Entry) -> None:
        name = entry.firmware_probe
        if name and name not in self._policy.probes:
            raise kinds.Refused(
                f'its entry names the firmware_probe {errors.quote(name)}, '
                'which this host does not have', 'define it with [nova_accel] '
                'firmware_probe in the configuration of this host')

    def _check_functions(self, unit: model.Unit, functions: Functions,
                         pool: kinds.Pool, entry: spec_entry.Entry) -> None:
        """Check a unit that is assigned as functions, not as an mdev."""
        self._check_isolation(functions, pool, entry)
        for check in self._checks_of_handover(functions, pool, entry):
            check()
        if pool.resets:
            if entry.reset == reset_methods.IF_POSSIBLE and (
                    not self._policy.strict):
                self._report_reset(unit, entry)
            self._check_use(functions, entry)

    def _checks_of_handover(
            self, functions: Functions, pool: kinds.Pool,
            entry: spec_entry.Entry) -> collections.abc.Iterator[
                collections.abc.Callable[[], None]]:
        """Yield the checks of what one server leaves for the next."""
        yield lambda: _check_data(functions, entry)
        if pool.resets:
            yield lambda: self._check_driver(functions, is_managed(entry,
                                                                   pool))
            if entry.reset != reset_methods.IF_POSSIBLE:
                yield lambda: self._check_reset(functions, entry)

    def _check_parent(self, function: model.Function) -> None:
        """Check the parent of mdevs, which the host keeps with its driver."""
        if function.unreadable:
            raise kinds.Refused('it cannot be read')
        self._check_card(function)
        self._check_claims(function)
        self._check_whole(function.address)
        self._check_whole(function.physfn)

    def _check_whole(self, address: model.Address | None) -> None:
        """Refuse a part of a function that a server holds.

        While the server is stopped, the function is bound to its driver again
        and shows the parts that it can have.
        """
        if address and address in self._held:
            raise kinds.Refused(
                f'a server holds {address} as a whole', 'no action needed, '
                'it is kept for the server; move or delete the server to use '
                'its parts')

    def _check_parts(self, function: model.Function) -> None:
        """Refuse a card whose virtual functions a server holds.

        A reboot of the host has removed them, and its entry does not create
        them any more.
        """
        if function.total_vfs and (
                needed := virtual_functions.needed(function, self._held)):
            raise kinds.Refused(
                f'a server holds {function.vf(needed - 1)} of it, which is '
                'not there', 'name its virtual functions again with num_vfs, '
                'and restart nova-compute; or move or delete the server')

    def _check_withheld(self, functions: Functions,
                        not_strict: model.Withheld | None) -> None:
        """Refuse withheld functions, and the VFs of withheld cards.

        :param not_strict: why the unit is withheld as a whole
        """
        found = {address: self._withheld[address] for function in functions
                 for address in (function.address, function.physfn)
                 if address and address in self._withheld}
        if found or not_strict:
            # One reason must not hide another, which may last longer.
            raise WithheldUnit((*itertools.chain(*found.values()),
                                *([not_strict] if not_strict else [])),
                               next(iter(found), None))

    def _check_lost(self, pool: kinds.Pool, function: model.Function) -> None:
        """Refuse other uses of a card while a held mdev is missing.

        A reboot of the host has removed it, and no entry creates it again.
        """
        for device in self._lost.get(function.physfn or function.address, ()):
            if not (pool.mdevs and naming.is_of_variant(device.alias,
                                                        pool.variant)):
                raise kinds.Refused(
                    'a server holds an mdev of this card, which is not there',
                    'name its mdev_type again, and restart nova-compute; or '
                    'move or delete the server')

    def _check_isolation(self, functions: Functions, pool: kinds.Pool,
                         entry: spec_entry.Entry) -> None:
        if isinstance(functions[0].address, model.ParentName):
            raise kinds.Refused('it is on no PCI bus',
                                'name the mdev_type that it has to create')
        if not self._machine.groups:
            raise kinds.Refused('this host has no IOMMU groups', _NO_IOMMU.get(
                self._architecture, '; '.join(
                    f'on {name}, {text}' for name, text in _NO_IOMMU.items())))
        self._check_host()
        named = next((f for f in functions if entry in self._named.get(
            f.address, ())), functions[0])
        self._check_each([named])
        self._check_named_with(named, functions, pool, entry)
        self._check_each(f for f in functions if f is not named)
        if named.iommu_group is None:
            raise kinds.Refused('it is in no IOMMU group')
        self._check_groups(functions)

    def _check_each(self, functions: collections.abc.Iterable[
            model.Function]) -> None:
        for function in functions:
            try:
                self._check_function(function)
            except kinds.Refused as refused:
                refused.because_of = function.address
                raise

    def _check_groups(self, unit: Functions) -> None:
        """Refuse a part of an IOMMU group, and one that mixes cards."""
        together = {function.address for function in unit}
        for function in {f.iommu_group: f for f in unit}.values():
            if not together.issuperset(self._machine.bundle(function)):
                raise kinds.Refused(f'IOMMU group {function.iommu_group} '
                                    'would be split')
        cards = {function.physfn for function in unit}
        if len(cards) > 1:
            raise kinds.Refused(f'IOMMU group {unit[0].iommu_group} mixes '
                                'virtual functions of a card with other '
                                'functions')

    def _check_host(self) -> None:
        """Refuse functions on a host that cannot isolate guests.

        Mdevs are not checked: the host keeps their parent.
        """
        for hazard in self._hazards:
            if not self._policy.allow_unsafe_host:
                raise kinds.Refused(
                    hazard.reason, hazard.remedy if self._policy.strict else
                    f'{hazard.remedy}, {unsafe_host.OVERRIDE}')
            if not self._policy.strict:
                self._problems.append(
                    f'{hazard.reason}; devices are offered anyway, as '
                    f'{unsafe_host.OPTION} says')

    def _check_function(self, function: model.Function) -> None:
        if function.unreadable:
            raise kinds.Refused('it cannot be read')
        if function.is_bridge:
            raise kinds.Refused(
                'it is a bridge', 'take it out of device_spec'
                if function.address in self._named else
                'put the card into a slot that has an IOMMU group of its own')
        if isinstance(function.address, model.PciAddress) and (
                function.address.domain > MAX_DOMAIN):
            raise kinds.Refused('its PCI domain is above ffff, which libvirt '
                                'cannot name')
        if function.use:
            raise kinds.Refused(f'the host uses it: {function.use}')
        # The count and the VFs are not read at the same time.
        vfs = max(function.num_vfs, self._machine.vfs[function.address])
        if vfs:
            raise kinds.Refused(
                f'it has {errors.count(vfs, "virtual function")} enabled',
                'name the virtual functions in device_spec, or write 0 to '
                'its sriov_numvfs')
        self._check_card(function)
        self._check_whole(function.physfn)
        self._check_parts(function)
        mdevs = sum(len(mdev_type.instances)
                    for mdev_type in function.mdev_types)
        if mdevs:
            raise kinds.Refused(
                f'it has {errors.count(mdevs, "mediated device")}',
                'remove them, or name their type in device_spec')
        self._check_claims(function)

    def _check_claims(self, function: model.Function) -> None:
        """Refuse functions that another program claims, or their card."""
        ours = self._named.get(function.address)
        for claim in self._foreign:
            if claim.matches(function):
                raise kinds.Refused(
                    f'{claim.label} claims it as well'
                    + (f' as {ours[0].label}' if ours else ''),
                    'leave it to one of the two')
            if function.physfn and claim.matches(
                    self._functions[function.physfn]):
                raise kinds.Refused(
                    f'{claim.label} claims its physical function '
                    f'{function.physfn}', 'leave the card to one of the two')

    def _check_driver(self, unit: Functions, managed: bool) -> None:
        """Refuse denied functions, and unmanaged ones without vfio driver."""
        for function in unit:
            if not managed and not function.vfio:
                raise kinds.Refused(
                    f'its driver is {function.driver or "none"}, which is not '
                    'a vfio driver, and its entry says managed no',
                    'bind it to vfio-pci or to the vfio driver of its vendor, '
                    'or let libvirt bind it with '
                    '"managed": "yes"', function.address)
            if function.denied and not function.vfio:
                raise kinds.Refused(*_DENIED, function.address)

    def _check_reset(self, functions: Functions,
                     entry: spec_entry.Entry) -> None:
        unit = tuple(function.address for function in functions)
        if not reset_methods.ways(unit, self._functions, entry.reset):
            raise kinds.Refused(*reset_methods.why_not_resettable(
                unit, self._functions, entry.reset))

    def _report_reset(self, unit: model.Unit,
                      entry: spec_entry.Entry) -> None:
        """Report a unit that is offered without a reset."""
        if not reset_methods.ways(unit, self._functions, entry.reset):
            self._problems.append(
                f'{unit[0]} ({self._functions[unit[0]].ids}): cannot be reset '
                f'by itself, and is offered as {entry.label} says')

    def _check_use(self, unit: Functions,
                   entry: spec_entry.Entry) -> None:
        """Report the console of the host, and VFs that guests may not use."""
        for function in unit:
            if function.console:
                self._problems.append(
                    f'{function.address} ({function.ids}): offered as '
                    f'{entry.label} says, though {CONSOLE}')
            if function.physfn and function.mdev_types:
                self._problems.append(
                    f'{function.address} ({function.ids}): offered as a PCI '
                    f'function, as {entry.label} says, though it can create '
                    'mediated devices; name one of its types as mdev_type if '
                    'a guest cannot use the function itself')

    def _check_named_with(self, named: model.Function, functions: Functions,
                          pool: kinds.Pool, entry: spec_entry.Entry) -> None:
        """Refuse a unit if an entry does not name all its functions."""
        unnamed = [function for function in functions
                   if entry not in self._named.get(function.address, ())]
        if unnamed:
            what = ('it can only be assigned together with'
                    if any(function.iommu_group != named.iommu_group
                           for function in unnamed)
                    else f'IOMMU group {named.iommu_group} has')
            others = [*dict.fromkeys(
                used for function in unnamed
                for used in self._named.get(function.address, ()))]
            which = (f'for which {others[0].label} is used' if others
                     else f'which {entry.label} does not name')
            raise kinds.Refused(
                f'{what} {together.describe(unnamed)}, {which}',
                self._remedy(functions, pool, [entry, *others]))

    def _remedy(self, functions: Functions, pool: kinds.Pool,
                entries: collections.abc.Sequence[spec_entry.Entry]) -> str:
        """Return what helps if an entry does not name all of a unit.

        :param entries: it, and others that name some of the unit
        """
        try:
            self._check_each(functions)
            self._check_groups(functions)
        except kinds.Refused as refused:
            return together.remedy_if_refused(
                functions, refused.because_of or functions[0].address,
                refused.reason)
        steps = []
        for check in self._checks_of_handover(functions, pool, entries[0]):
            try:
                check()
            except kinds.Refused as refused:
                steps.append(refused.remedy)
        return together.remedy(functions, entries, steps)


def _check_whole_device(pool: kinds.Pool, functions: Functions) -> None:
    """Refuse one_time_use for parts of a device, whose use is not tracked."""
    if pool.mdevs or len(set(pool.units)) > 1 or functions[0].physfn:
        raise kinds.Refused(
            'its entry says one_time_use, which is for whole devices, and '
            'this is a part of one', 'take one_time_use out of its entry')


def _check_data(functions: Functions, entry: spec_entry.Entry) -> None:
    """Refuse disks, as a reset does not erase them, unless allowed."""
    for function in functions:
        if function.class_code >> 8 == _DISK and not (
                entry.one_time_use or entry.clean or entry.keeps_data):
            raise kinds.Refused(
                'it is an NVMe disk, and the next server would find what this '
                'one has written', 'name a cleaner in its entry, '
                '"clean": "NAME"; or write "one_time_use": "yes", and wipe '
                'it each time before you free it; or "keeps_data": "yes", '
                'if all its servers belong to one owner',
                function.address)


def is_managed(entry: spec_entry.Entry, pool: kinds.Pool) -> bool:
    return next((managed for managed in (entry.managed, pool.managed)
                 if managed is not None), True)
