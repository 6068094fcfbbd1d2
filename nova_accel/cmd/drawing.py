# SPDX-License-Identifier: Apache-2.0
"""Draw a Host as a tree of text lines.

rich draws trees, too, but each compute node would have to install it.
"""

import bisect
import collections
import collections.abc
import itertools
import json
import textwrap

from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core import pci_class
from nova_accel.core.device_spec import reset_methods
from nova_accel.core.device_spec import suggestion
from nova_accel.core.fabric import located
from nova_accel.core.guest import bar_window
from nova_accel.osc import columns

Branch = columns.Branch

#: The BARs of each function of a unit.
_Bars = list[tuple[model.Bar, ...]]


def draw(host: model.Host, source: str, problems: list[str],
         everything: bool = False, health: str = '',
         switched: located.Located = located.NONE,
         file: model.Links | None = None,
         ) -> collections.abc.Iterator[str]:
    """Yield the lines of the drawing.

    :param source: where the Host was read
    :param problems: shown last, one line each
    :param everything: also show functions that are not accelerators
    :param health: where the health of its devices was read, '' if it was not
    :param switched: the partitions of the fabric manager
    :param file: the content of the file of link domains
    """
    regions = [device.regions for device in host.devices]
    units = sum(region.total for region in itertools.chain(*regions))
    # A Region without units has none that could be withheld.
    devices = sum(any(region.available or not region.units for region in own)
                  for own in regions)
    states = collections.Counter(state for refusal in host.refusals
                                 for state in refusal.states)
    withheld = sum(refusal.is_withheld for refusal in host.refusals)
    functions = [function for function in host.functions
                 if isinstance(function.address, model.PciAddress)]
    yield (f'{source}: PCI functions: {len(functions)}, NUMA nodes: '
           f'{_numa_nodes(host)}, IOMMU groups: {_iommu_groups(host)}')
    yield (f'Devices offered: {devices}, units: {units}, functions refused: '
           f'{len(host.refusals) - withheld}')
    if health:
        yield ('Functions withheld for their health: '
               f'{states[model.WithheldState.UNHEALTHY]} ({health})')
    if not_strict := states[model.WithheldState.NOT_STRICT]:
        yield f'Functions withheld by isolation = strict: {not_strict}'
    yield from columns.lines({**_branches(host, everything),
                              **_link_domains(host.links),
                              **_fabric(switched, file or model.Links())})
    yield from _resets(host)
    yield from _cleaners(host)
    yield from _address_bits(host)
    for problem in problems:
        yield f'! {problem}'


def suggest(found: suggestion.Suggestions,
            withheld: collections.abc.Iterable[model.Refusal] = (),
            ) -> collections.abc.Iterator[str]:
    """Yield the lines of suggested entries, and of devices not suggested.

    :param withheld: suggested functions that are not healthy
    """
    for error in group(found.refusals):
        yield f'! Not suggested: {error}'
    for error in group(withheld):
        yield f'! Withheld: {error}'
    if not found.entries:
        return
    yield ('No device is offered, because device_spec is not set. In section '
           '[nova_accel] of nova.conf, these entries would offer devices:')
    for entry in found.entries:
        # Users paste this. For oslo.config, a line that begins with a blank
        # continues the previous one, and a comment needs its own line.
        yield from _comments(entry)
        yield f'device_spec = {json.dumps(entry.item)}'


def _comments(entry: suggestion.Suggestion) -> collections.abc.Iterator[str]:
    yield '# ' + ', '.join(f'{name}: {count}'
                           for name, count in entry.units.items())
    others = [str(value) for other in entry.others
              for key, value in other.items() if entry.item.get(key) != value]
    if others:
        yield from textwrap.wrap(
            f'Other types: {", ".join(others)}', 79, initial_indent='# ',
            subsequent_indent='#   ', break_long_words=False,
            break_on_hyphens=False)
    if entry.is_shared:
        yield ('# Set max_instances if a card cannot have so many at the same '
               'time.')


def refused(host: model.Host) -> collections.abc.Iterator[str]:
    """Yield a line for each reason for which functions are not offered."""
    for word, is_withheld in (('Refused', False), ('Withheld', True)):
        for error in group(refusal for refusal in host.refusals
                           if refusal.is_withheld is is_withheld):
            yield f'{word}: {error}'


def group(refusals: collections.abc.Iterable[model.Refusal],
          ) -> collections.abc.Iterator[errors.DeviceError]:
    """Yield one error for each reason for which functions are refused."""
    for (reason, remedy), (first, *others) in model.group(refusals).items():
        yield errors.DeviceError(
            f'{first.address} ({first.ids})'
            + (f' and {len(others)} more' if others else ''), reason, remedy)


def _numa_nodes(host: model.Host) -> str:
    cpuless = len(host.cpuless_nodes)
    return f'{len(host.numa_nodes)}' + (
        f' and {cpuless} without CPUs' if cpuless else '')


def _iommu_groups(host: model.Host) -> str:
    groups = {function.iommu_group for function in host.functions
              if function.iommu_group is not None}
    return str(len(groups)) if groups else 'none; no device can be offered'


def _branches(host: model.Host, everything: bool) -> Branch:
    """Return NUMA nodes, host bridges, switches, functions as nested dicts."""
    states = _states(host)
    tree: Branch = {}
    for function in sorted(host.functions, key=_place):
        known = (function.class_code >> 8 in {**pci_class.ACCELERATORS,
                                              **pci_class.COMPANIONS}
                 or isinstance(function.address, model.ParentName))
        if not (function.address in states or everything or (
                known and not function.physfn)):
            continue
        place = function.location
        node = ('NUMA node unknown' if place.numa_node is None
                else f'NUMA node {place.numa_node}')
        branch = tree.setdefault(node, {}).setdefault(
            place.root or 'host bridge unknown', {})
        if place.switch:
            branch = branch.setdefault(f'switch {place.switch}', {})
        branch[_label(function, states.get(function.address, 'no entry'))
               ] = {}
    return tree


def _link_domains(links: model.Links) -> Branch:
    """Return the link domains, largest sets first."""
    labels = [
        f'{word} {" ".join(sorted(addresses))}'
        for word, sets in (('partition', links.partitions),
                           ('island', links.islands))
        for addresses in sorted(sets, key=lambda addresses: (
            -len(addresses), sorted(addresses)))]
    return {'link domains': {label: {} for label in labels}} if labels else {}


def _fabric(switched: located.Located, file: model.Links) -> Branch:
    """Return the partitions of the fabric manager, by their number."""
    labels = []
    for partition in switched.partitions:
        cards = switched.cards.get(partition.id)
        modules = ' '.join(str(member.module) + (
            f' ({member.links} of '
            f'{errors.count(member.max_links or 0, "link")})'
            if member.has_failed_links else '')
            for member in partition.members)
        labels.append(', '.join(filter(None, (
            f'partition {partition.id}: '
            + (' '.join(sorted(cards)) if cards else 'not offered'),
            f'modules {modules}',
            'active' if partition.is_active else '',
            'also in the file' if cards in file.partitions else ''))))
    return ({'fabric manager': {label: {} for label in labels}} if labels
            else {})


def _place(function: model.Function,
           ) -> tuple[bool, int, str, str, model.Address]:
    place = function.location
    return (place.numa_node is None, place.numa_node or 0, place.root,
            place.switch or '', function.address)


def _label(function: model.Function, state: str) -> str:
    if isinstance(function.address, model.ParentName):
        return f'{function.address}  creates mdevs: {state}'
    kind = pci_class.name(function.class_code)
    if function.physfn:
        kind = f'VF of {function.physfn}'
    elif function.num_vfs:
        kind += f', {errors.count(function.num_vfs, "VF")}'
    if function.location.cpuless_node is not None:
        kind += (f', on NUMA node {function.location.cpuless_node} without '
                 'CPUs')
    kind += ''.join(f', BAR {bar.number}: {bar_window.text(bar.size)}'
                    for bar in function.bars or ()
                    if bar.size >= bar_window.GIB)
    return f'{function.address}  {function.ids}  {kind}: {state}'


def _states(host: model.Host) -> dict[model.Address, str]:
    # A function can be offered as one thing, and refused as another.
    states: dict[model.Address, dict[str, None]] = collections.defaultdict(
        dict)
    for device in host.devices:
        for region in device.regions:
            traits = ''.join(f' +{trait}' for trait in sorted(region.traits))
            for first, *others in region.units:
                states[first][f'{region.resource_class}{traits}'] = None
                for address in others:
                    states[address][f'one unit with {first}'] = None
        states[device.address] = states[device.address] or {
            'offered by its VFs': None}
    for refusal in host.refusals:
        word = 'WITHHELD' if refusal.is_withheld else 'REFUSED'
        states[refusal.address][f'{word}, {refusal.reason}'] = None
    return {address: '; '.join(texts) for address, texts in states.items()}


def _cleaners(host: model.Host) -> collections.abc.Iterator[str]:
    """Yield a line for each class: what cleans units between two servers."""
    found = collections.Counter(
        (region.resource_class, region.cleaner) for device in host.devices
        for region in device.regions for _unit in dict.fromkeys(region.units)
        if region.cleaner)
    for (name, cleaner), number in sorted(found.items()):
        yield f'{name}: {errors.count(number, "unit")}, cleaned by {cleaner}'


def _resets(host: model.Host) -> collections.abc.Iterator[str]:
    """Yield a line for each class: what resets units between two servers."""
    resets = reset_methods.describe_all(host)
    found = collections.Counter(
        (region.resource_class, resets[unit]) for device in host.devices
        for region in device.regions for unit in region.units
        if resets.get(unit, reset_methods.UNKNOWN) != reset_methods.UNKNOWN)
    for (name, how), number in sorted(found.items()):
        yield f'{name}: {errors.count(number, "unit")}, reset by {how}'


def _address_bits(host: model.Host) -> collections.abc.Iterator[str]:
    """Yield a line for each class: what guests need for the BARs of units."""
    for name, units in sorted(_bars_by_class(host).items()):
        # How many units a guest's firmware can map.
        most = bisect.bisect(range(1, len(units) + 1), False,
                             key=lambda count: not _fits(units, count))
        needs = {count: _need(units, count) for count in sorted({1, most})}
        texts = [f'{needed.least} with {count}'
                 for count, needed in needs.items()
                 if needed and 0 < count <= most]
        if most < len(units):
            texts.append(f'more than firmware can use with {most + 1}')
        if texts:
            yield (f'{name}: physical address bits that a UEFI guest needs '
                   f'for the BARs: {"; ".join(texts)}')


def _bars_by_class(host: model.Host) -> dict[str, list[_Bars]]:
    """Return the BARs of each unit's functions, by resource class."""
    bars = {function.address: function.bars for function in host.functions}
    units: dict[str, list[_Bars]] = collections.defaultdict(list)
    for device in host.devices:
        for region in device.regions:
            # An mdev does not have the BARs of its parent.
            if not region.mdevs:
                units[region.resource_class].extend(
                    [bars.get(address) or () for address in unit]
                    for unit in region.units[:region.size])
    return units


def _need(units: list[_Bars], count: int) -> bar_window.Need | None:
    return bar_window.need(itertools.chain(*units[:count]))


def _fits(units: list[_Bars], count: int) -> bool:
    needed = _need(units, count)
    return not needed or bar_window.choose(needed,
                                           bar_window.MAX_BITS) is not None
