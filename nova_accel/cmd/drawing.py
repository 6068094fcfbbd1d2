# SPDX-License-Identifier: Apache-2.0
"""A Host as a tree that can be read at a glance."""

import bisect
import collections
import collections.abc
import itertools
import json
import textwrap

from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core.device_spec import suggestion
from nova_accel.core.guest import bar_window

# PCI Code and ID Assignment Specification: base class and subclass. Those of
# the first table are shown, as accelerators are, also if no entry names them.
_COMPANIONS = {
    0x0108: 'NVMe', 0x0200: 'Ethernet', 0x0207: 'InfiniBand',
    0x0280: 'network controller',
}
_OTHERS = {
    0x0100: 'SCSI', 0x0101: 'IDE', 0x0104: 'RAID', 0x0106: 'SATA',
    0x0107: 'SAS', 0x0403: 'audio', 0x0600: 'host bridge',
    0x0601: 'ISA bridge', 0x0604: 'PCI bridge', 0x0880: 'system peripheral',
    0x0c03: 'USB', 0x0c05: 'SMBus', 0x1101: 'performance counters',
}
_NAMES = {**suggestion.ACCELERATORS, **_COMPANIONS, **_OTHERS}

Branch = dict[str, 'Branch']


def draw(host: model.Host, source: str, problems: list[str],
         everything: bool = False) -> collections.abc.Iterator[str]:
    """The lines of the picture.

    :param source: where the Host was read
    :param problems: shown last, one line each
    :param everything: also functions that are no accelerators
    """
    offered = sum(region.total for device in host.devices
                  for region in device.regions)
    functions = [function for function in host.functions
                 if isinstance(function.address, model.PciAddress)]
    yield (f'{source}: PCI functions: {len(functions)}, NUMA nodes: '
           f'{len(host.numa_nodes)}, IOMMU groups: {_iommu_groups(host)}')
    yield (f'Devices offered: {len(host.devices)}, units: {offered}, '
           f'functions refused: {len(host.refusals)}')
    yield from _lines({**_branches(host, everything),
                       **_link_domains(host.links)})
    yield from _address_bits(host)
    for problem in problems:
        yield f'! {problem}'


def suggest(found: suggestion.Suggestions) -> collections.abc.Iterator[str]:
    """The lines of what could be offered, and why other devices could not."""
    for error in group(found.refusals):
        yield f'! Not suggested: {error}'
    if not found.entries:
        return
    yield ('Nothing is offered, because no device_spec names it. In nova.conf '
           'under [nova_accel], these would:')
    for entry in found.entries:
        # To be pasted: to oslo.config a line that begins with a blank goes on
        # with the one before, and only a line of its own is a comment.
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
        yield ('# A card that cannot have so many at a time needs '
               'max_instances.')


def group(refusals: collections.abc.Iterable[model.Refusal],
          ) -> collections.abc.Iterator[errors.DeviceError]:
    """One for each reason for which functions are refused."""
    for (reason, remedy), (first, *others) in model.group(refusals).items():
        yield errors.DeviceError(
            f'{first.address} ({first.ids})'
            + (f' and {len(others)} more' if others else ''), reason, remedy)


def _iommu_groups(host: model.Host) -> str:
    groups = {function.iommu_group for function in host.functions
              if function.iommu_group is not None}
    return str(len(groups)) if groups else 'none; nothing can be offered'


def _branches(host: model.Host, everything: bool) -> Branch:
    """NUMA node, host bridge, switch, function; as nested dictionaries."""
    states = _states(host)
    tree: Branch = {}
    for function in sorted(host.functions, key=_place):
        known = (function.class_code >> 8 in {**suggestion.ACCELERATORS,
                                              **_COMPANIONS}
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
        branch[_label(function, states.get(function.address, 'not named'))
               ] = {}
    return tree


def _link_domains(links: model.Links) -> Branch:
    """What is joined directly, largest sets first."""
    labels = [
        f'{word} {" ".join(sorted(addresses))}'
        for word, sets in (('partition', links.partitions),
                           ('island', links.islands))
        for addresses in sorted(sets, key=lambda addresses: (
            -len(addresses), sorted(addresses)))]
    return {'link domains': {label: {} for label in labels}} if labels else {}


def _place(function: model.Function):
    place = function.location
    return (place.numa_node is None, place.numa_node or 0, place.root,
            place.switch or '', function.address)


def _label(function: model.Function, state: str) -> str:
    if isinstance(function.address, model.ParentName):
        return f'{function.address}  makes mdevs: {state}'
    kind = _NAMES.get(function.class_code >> 8,
                      f'class {function.class_code >> 8:04x}')
    if function.physfn:
        kind = f'VF of {function.physfn}'
    elif function.num_vfs:
        kind += f', {function.num_vfs} VFs'
    kind += ''.join(f', BAR {bar.number}: {bar_window.text(bar.size)}'
                    for bar in function.bars or ()
                    if bar.size >= bar_window.GIB)
    return f'{function.address}  {function.ids}  {kind}: {state}'


def _states(host: model.Host) -> dict[model.PciAddress, str]:
    # A function can be offered as several things, and refused as another.
    states: dict[model.PciAddress, dict[str, None]] = collections.defaultdict(
        dict)
    for device in host.devices:
        for region in device.regions:
            traits = ''.join(f' +{trait}' for trait in sorted(region.traits))
            for first, *others in region.units:
                states[first][f'{region.resource_class}{traits}'] = None
                for address in others:
                    states[address][f'goes with {first}'] = None
        states[device.address] = states[device.address] or {
            'offered by its VFs': None}
    for refusal in host.refusals:
        states[refusal.address][f'REFUSED, {refusal.reason}'] = None
    return {address: '; '.join(texts) for address, texts in states.items()}


def _address_bits(host: model.Host) -> collections.abc.Iterator[str]:
    """What guests need for the BARs of units that are alike, by class."""
    bars = {function.address: function.bars for function in host.functions}
    units: dict[str, list] = collections.defaultdict(list)
    for device in host.devices:
        for region in device.regions:
            # An mdev has none of its parent's.
            if not region.mdevs:
                units[region.resource_class].extend(
                    [bars.get(address) or () for address in unit]
                    for unit in region.units[:region.total])
    for name, found in sorted(units.items()):
        most = bisect.bisect(range(1, len(found) + 1), False,
                             key=lambda count: not _fits(found, count))
        wanted = {count: _need(found, count) for count in sorted({1, most})}
        texts = [f'with {count}, {needed.least} physical address bits'
                 for count, needed in wanted.items()
                 if needed and 0 < count <= most]
        if most < len(found):
            texts.append(f'with {most + 1}, more than firmware can use')
        if texts:
            yield (f'{name}: for its BARs a UEFI guest needs '
                   f'{"; ".join(texts)}')


def _need(units, count: int) -> bar_window.Need | None:
    return bar_window.need(itertools.chain(*units[:count]))


def _fits(units, count: int) -> bool:
    needed = _need(units, count)
    return not needed or bar_window.choose(needed,
                                           bar_window.MAX_BITS) is not None


def _lines(tree: Branch, indent: str = '') -> collections.abc.Iterator[str]:
    for index, (label, branch) in enumerate(tree.items(), 1):
        last = index == len(tree)
        yield f'{indent}{"└─" if last else "├─"} {label}'
        yield from _lines(branch, indent + ('   ' if last else '│  '))
