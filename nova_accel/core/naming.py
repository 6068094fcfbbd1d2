# SPDX-License-Identifier: Apache-2.0
"""Names that other programs see: providers, resource classes, traits, aliases.

Each name is a pure function of its arguments, so that every process computes
the same name, also after a restart.
"""

import collections.abc
import functools
import re
import uuid

import os_resource_classes as orc
import os_traits

from nova_accel.core import model

#: A trait of all our providers. Every group of a profile requires it, so that
#: it does not get providers of Nova or Cyborg with the same class.
MARKER_TRAIT = 'CUSTOM_NOVA_ACCEL'

#: The traits of all our providers.
OUR_TRAITS = frozenset({MARKER_TRAIT, os_traits.OWNER_NOVA})

#: The resource class of which each compute node with devices of ours has one
#: unit. No server gets it. Requests of allocation candidates for it return all
#: compute nodes with devices at once.
HOST_CLASS = 'CUSTOM_NOVA_ACCEL_HOST'

#: The trait of Regions that are offered under ``isolation = strict``. Profiles
#: can require it.
STRICT_TRAIT = f'{MARKER_TRAIT}_STRICT'

#: The trait of Regions whose units can be live-migrated with their state.
LIVE_TRAIT = f'{MARKER_TRAIT}_LIVE_MIGRATABLE'

#: The trait of one-time-use devices. os-traits has it since 2025.2.
ONE_TIME_USE_TRAIT = getattr(os_traits, 'HW_PCI_ONE_TIME_USE',
                             'CUSTOM_HW_PCI_ONE_TIME_USE')

#: Classes that Nova itself reports and that no device may have.
NOVAS_OWN_CLASSES = frozenset({
    orc.VCPU, orc.PCPU, orc.MEMORY_MB, orc.DISK_GB, orc.NUMA_SOCKET,
    orc.NUMA_CORE, orc.NUMA_THREAD, orc.NUMA_MEMORY_MB, orc.IPV4_ADDRESS,
    orc.MEM_ENCRYPTION_CONTEXT, orc.NET_BW_EGR_KILOBIT_PER_SEC,
    orc.NET_BW_IGR_KILOBIT_PER_SEC})

#: A pattern for a PCI address in the name of a trait.
TRAIT_ADDRESS = '[0-9A-F]{4,8}_[0-9A-F]{2}_[01][0-9A-F]_[0-7]'

# Placement's schema allows 255 characters.
_CUSTOM = re.compile(r'CUSTOM_[A-Z0-9_]{1,248}')

_UNIT, _MARK = 'CUSTOM_UNIT_OF_', '_accel_'

# More mdevs than a server can have of one provider.
_MDEVS = 256

# Placement's limits for names of classes and of providers.
_CLASS_LIMIT = 255
_NAME_LIMIT = 200

#: The group in the alias of a device that belongs to none.
NO_GROUP = 'flavor'

#: Longest name of a class: short enough to fit whole into the name of its
#: provider, and into the class of its units.
MAX_CLASS = 180


def is_resource_class(name: str) -> bool:
    """Whether a device may have, and a profile ask for, this class."""
    if (name in NOVAS_OWN_CLASSES or name == HOST_CLASS
            or class_of_units(name)):
        return False
    return name in orc.STANDARDS or (len(name) <= MAX_CLASS
                                     and bool(_CUSTOM.fullmatch(name)))


def is_trait(name: str) -> bool:
    """Whether a trait is standard, or a valid custom one."""
    return bool(_CUSTOM.fullmatch(name)) or name in _standard_traits()


def is_own_trait(name: str) -> bool:
    """Whether only nova_accel itself may set a trait."""
    return name == MARKER_TRAIT or name.startswith(f'{MARKER_TRAIT}_')


def address_to_trait(address: model.PciAddress) -> str:
    """Return a PCI address in the form that names of traits have it."""
    return re.sub(r'\W', '_', str(address)).upper()


def address_of_trait(text: str) -> model.PciAddress:
    """Return the address of a text that :data:`TRAIT_ADDRESS` matches."""
    return model.PciAddress(*(int(part, 16) for part in text.split('_')))


def normalise_resource_class(text: str) -> str:
    """Turn free text into a class name, as ``[pci] device_spec`` does."""
    name = text.strip().upper()
    return name if name in orc.STANDARDS else _custom(name)


def normalise_trait(text: str) -> str:
    """Turn free text into a trait name, as ``[pci] device_spec`` does."""
    name = text.strip().upper()
    return name if name in _standard_traits() else _custom(name)


def default_resource_class(vendor_id: str, product_id: str) -> str:
    """Return the default class of a device, the same as in Nova."""
    return f'CUSTOM_PCI_{vendor_id}_{product_id}'.upper()


def unit_class(resource_class: str) -> str:
    """Return the class for the units in the provider of a Region.

    The resource class itself is in one provider for the whole host. So a
    quota on it does not count the units of a server twice.
    """
    return f'{_UNIT}{resource_class}'[:_CLASS_LIMIT]


def class_of_units(name: str) -> str | None:
    """Return the class that a class of units is for, None for others."""
    return name.removeprefix(_UNIT) if name.startswith(_UNIT) else None


def region_name(resource_class: str, traits: frozenset[str],
                managed: bool, variant: str = '') -> str:
    """Return the name of a Region, which does not depend on other Regions.

    :returns: the class, with the variant or a digest if it has more properties
    """
    if variant:
        return f'{resource_class}_{variant}'
    if managed and not traits:
        return resource_class
    facts = ' '.join([str(managed), *sorted(traits)])
    return f'{resource_class}_{_digest(facts)}'


def unique_region_name(region: model.Region) -> str:
    """Return a name for a Region whose name its Device has already."""
    facts = ' '.join([str(region.managed), str(region.live_migratable),
                      str(region.settings), *sorted(region.traits)])
    return f'{region.name}_{_digest(facts)}'


def device_provider_name(nodename: str, device: model.Device) -> str:
    return _provider_name(nodename, str(device.address))


def is_provider(name: str, parent: str | None,
                traits: collections.abc.Collection[str]) -> bool:
    """Whether a provider in Placement is ours."""
    # The trait alone is not enough: an operator can set it on any provider,
    # also on that of the compute node.
    return bool(parent) and MARKER_TRAIT in traits and bool(
        re.search(rf'({_MARK}|~[0-9a-f]{{12}}~)', name))


def region_provider_name(nodename: str, device: model.Device,
                         region: model.Region) -> str:
    return _provider_name(nodename, f'{device.address}_{region.name}')


def class_provider_name(nodename: str, resource_class: str) -> str:
    return _provider_name(nodename, resource_class)


def class_of_provider(name: str) -> str | None:
    """Return the class that a class's provider counts, None for others."""
    # The name of a Device's provider has an address, which is no valid class.
    _host, mark, rest = name.rpartition(_MARK)
    return rest if mark and is_resource_class(rest) else None


def parse_provider_name(name: str) -> tuple[str, str]:
    """Return the address and the Region in the name of a provider.

    :returns: '' for the Region of a Device that has only one, and the whole
        name as address if it was shortened too much
    """
    rest = name.rpartition(_MARK)[2]
    match = re.match(r'([^_]+)(?:_(.*))?', rest)
    return (match[1], match[2] or '') if match else (rest, '')


def class_provider_uuid(root: str, resource_class: str) -> str:
    """Return the uuid of the provider that counts a class for the host.

    :param root: uuid of the compute node's provider
    """
    return str(uuid.uuid5(uuid.UUID(root), f'accel/{resource_class}'))


def provider_uuid(root: str, address: model.Address | str,
                  region: str | None = None) -> str:
    """Return the uuid of a Device's or Region's provider, a uuid5.

    :param root: uuid of the compute node's provider, the name space
    :param address: the address of the Device
    :param region: the name of a Region that has a provider of its own
    """
    name = f'accel/{address}' if region is None else (
        f'accel/{address}/{region}')
    return str(uuid.uuid5(uuid.UUID(root), name))


def alias(group: str, provider: str, index: int, ids: str = '',
          variant: str = '', card: model.PciAddress | None = None) -> str:
    """Return the user alias of a ``<hostdev>``.

    libvirt (formatdomain, "Devices"): a user alias starts with ``ua-`` and
    has only letters, digits, underscores and hyphens; it is unique in its
    domain.

    :param group: the group of the profile, e.g. ``ACCEL0``, or '' if the
        flavor asks for the class without a profile
    :param provider: uuid of the provider
    :param index: number of the hostdev in this group and provider
    :param ids: vendor and product id of the function, ``10de:2330``, or ''
        if they can change
    :param variant: the variant of the Region, which the provider does not
        show if the Device has only one Region
    :param card: for an mdev, the address of its Device
    """
    return f'ua-accel-{group or NO_GROUP}-{provider}-{index}' + (
        f'-{ids.replace(":", "")}' if ids else '') + (
        f'-t{_digest(variant)}' if variant else '') + (
        '-c' + re.sub('[:.]', '-', str(card)) if card else '')


def mdev_uuid(server: str, provider: str, index: int) -> str:
    """Return the uuid of the mdev that a server gets of a provider.

    A retry after a failure gets the same uuid, and so creates no second mdev.

    :param index: number of the mdev of this server and provider
    """
    return str(uuid.uuid5(uuid.UUID(provider), f'mdev/{server}/{index}'))


def is_mdev_of(text: str, server: str,
               given_by: collections.abc.Iterable[str]) -> bool:
    """Whether a text is the uuid of an mdev of a server and some providers.

    :param given_by: uuids of providers
    """
    return is_mdev_uuid(text) and any(
        mdev_uuid(server, provider, index) == text
        for provider in given_by for index in range(_MDEVS))


def is_parent_name(text: str) -> bool:
    """Whether a text is a safe name of a device in mdev_bus."""
    return bool(re.fullmatch(r'[.:]*[\w-][\w.:-]*', text, re.ASCII))


def is_mdev_type(text: str) -> bool:
    """Whether a text is a safe name of an mdev type in sysfs."""
    return bool(re.fullmatch(r'\.*[\w+-][\w.+-]*', text, re.ASCII))


def is_uuid(text: str) -> bool:
    """Whether a text is a uuid."""
    try:
        return bool(uuid.UUID(text))
    except ValueError:
        return False


def is_mdev_uuid(text: str) -> bool:
    """Whether an mdev can be ours: other programs use random uuids."""
    try:
        return uuid.UUID(text).version == 5
    except ValueError:
        return False


_ALIAS = re.compile(r'ua-accel-(?P<group>[A-Za-z0-9_-]+?)-'
                    r'(?P<provider>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-'
                    r'[0-9a-f]{12})-(?P<index>\d+)'
                    r'(?:-(?P<vendor>[0-9a-f]{4})(?P<product>[0-9a-f]{4}))?'
                    r'(?:-t(?P<variant>[0-9a-f]{8}))?'
                    r'(?:-c(?P<domain>[0-9a-f]{4,8})-(?P<bus>[0-9a-f]{2})'
                    r'-(?P<slot>[01][0-9a-f])-(?P<function>[0-7]))?')


def parse_alias(text: str) -> tuple[str, str] | None:
    """Return group and provider of an alias of ours, None for others."""
    match = _ALIAS.fullmatch(text)
    return (match['group'], match['provider']) if match else None


def ids_of_alias(text: str) -> str:
    """Return vendor and product id in an alias of ours, '' if absent."""
    match = _ALIAS.fullmatch(text)
    return (f'{match["vendor"]}:{match["product"]}'
            if match and match['vendor'] else '')


def card_of_alias(text: str) -> model.PciAddress | None:
    """Return the Device of an mdev in an alias of ours, None if absent."""
    match = _ALIAS.fullmatch(text)
    return (model.PciAddress.parse('{domain}:{bus}:{slot}.{function}'.format(
        **match.groupdict())) if match and match['domain'] else None)


def is_of_variant(text: str, variant: str) -> bool | None:
    """Whether an alias of ours has this variant, None if it has none."""
    match = _ALIAS.fullmatch(text)
    return (match['variant'] == _digest(variant)
            if match and match['variant'] else None)


@functools.cache
def _standard_traits() -> frozenset[str]:
    return frozenset(os_traits.get_traits())


def _custom(name: str) -> str:
    if name.startswith('CUSTOM_'):
        return re.sub(r'[^A-Z0-9_]+', '_', name)
    # Each run of characters that are not allowed becomes one underscore.
    return str(os_traits.normalize_name(name))


def _digest(facts: str) -> str:
    return uuid.uuid5(uuid.NAMESPACE_OID, facts).hex[:8]


def _provider_name(nodename: str, rest: str) -> str:
    # Shorten the host's part of a name that is too long. Providers are
    # identified by uuid, so this is safe.
    name = f'{nodename}{_MARK}{rest}'
    if len(name) <= _NAME_LIMIT:
        return name
    digest = uuid.uuid5(uuid.NAMESPACE_DNS, name).hex[:12]
    room = _NAME_LIMIT - len(f'~{digest}{_MARK}{rest}')
    if room >= 0:
        return f'{nodename[:room]}~{digest}{_MARK}{rest}'
    # The name of a Region can be too long by itself; that of a class cannot.
    return f'{name[:90]}~{digest}~{name[-90:]}'
