# SPDX-License-Identifier: Apache-2.0
"""Names that other programs see: providers, resource classes, traits, aliases.

Each is a pure function of what it names, so that a restart, a second process
or a person with a calculator arrives at the same name.
"""

import collections.abc
import functools
import re
import uuid

import os_resource_classes as orc
import os_traits

from nova_accel.core import model

#: On every provider of ours, and required by every profile's group: it keeps
#: a profile off providers of Nova's or Cyborg's with the same class.
MARKER_TRAIT = 'CUSTOM_NOVA_ACCEL'

#: On every provider of ours.
OUR_TRAITS = frozenset({MARKER_TRAIT, os_traits.OWNER_NOVA})

#: On what may be used by one server only. os-traits has it since 2025.2.
ONE_TIME_USE_TRAIT = getattr(os_traits, 'HW_PCI_ONE_TIME_USE',
                             'CUSTOM_HW_PCI_ONE_TIME_USE')

#: Classes that Nova itself counts and that no device may claim to be.
NOVAS_OWN_CLASSES = frozenset({
    orc.VCPU, orc.PCPU, orc.MEMORY_MB, orc.DISK_GB, orc.NUMA_SOCKET,
    orc.NUMA_CORE, orc.NUMA_THREAD, orc.NUMA_MEMORY_MB, orc.IPV4_ADDRESS,
    orc.MEM_ENCRYPTION_CONTEXT, orc.NET_BW_EGR_KILOBIT_PER_SEC,
    orc.NET_BW_IGR_KILOBIT_PER_SEC})

# Placement's schema allows 255 characters.
_CUSTOM = re.compile(r'CUSTOM_[A-Z0-9_]{1,248}')

_UNIT, _MARK = 'CUSTOM_UNIT_OF_', '_accel_'

# More than a server can have of one provider.
_MDEVS = 256

# Placement's limit for a class's name, and for a provider's.
_CLASS_LIMIT = 255
_NAME_LIMIT = 200

#: Longest name of a class: the name of its provider has it whole, whatever
#: the host is called, and the class of its units is no longer than can be.
MAX_CLASS = 180


def is_resource_class(name: str) -> bool:
    """Whether a device may have, and a profile ask for, this class."""
    if name in NOVAS_OWN_CLASSES or class_of_units(name):
        return False
    return name in orc.STANDARDS or (len(name) <= MAX_CLASS
                                     and bool(_CUSTOM.fullmatch(name)))


def is_trait(name: str) -> bool:
    """Whether Placement knows this trait or lets anyone make it."""
    return bool(_CUSTOM.fullmatch(name)) or name in _standard_traits()


def normalise_resource_class(text: str) -> str:
    """Free text to a class name, as ``[pci] device_spec`` does it."""
    name = text.strip().upper()
    return name if name in orc.STANDARDS else _custom(name)


def normalise_trait(text: str) -> str:
    """Free text to a trait name, as ``[pci] device_spec`` does it."""
    name = text.strip().upper()
    return name if name in _standard_traits() else _custom(name)


def default_resource_class(function: model.Function) -> str:
    """The class of a device whose entry gives none, as Nova's PCI code."""
    return f'CUSTOM_PCI_{function.vendor_id}_{function.product_id}'.upper()


def unit_class(resource_class: str) -> str:
    """The class in which a Region's own provider counts its units.

    The class itself is counted once for the whole host, so that a quota on it
    counts what a server has, and not that twice.
    """
    return f'{_UNIT}{resource_class}'[:_CLASS_LIMIT]


def class_of_units(name: str) -> str | None:
    """The class whose units a class counts; None if it is no such class."""
    return name.removeprefix(_UNIT) if name.startswith(_UNIT) else None


def region_name(resource_class: str, traits: frozenset[str],
                managed: bool, variant: str = '') -> str:
    """What tells a Region from others of its Device, whatever they are.

    :returns: the class, with a short digest where there is more to it
    """
    if variant:
        return f'{resource_class}_{variant}'
    if managed and not traits:
        return resource_class
    facts = ' '.join([str(managed), *sorted(traits)])
    return f'{resource_class}_{_digest(facts)}'


def unlike(region: model.Region) -> str:
    """A name for a Region whose name another of its Device has already."""
    facts = ' '.join([str(region.managed), str(region.live_migratable),
                      str(region.settings), *sorted(region.traits)])
    return f'{region.name}_{_digest(facts)}'


def device_provider_name(nodename: str, device: model.Device) -> str:
    return _provider_name(nodename, str(device.address))


def is_provider(name: str, parent: str | None,
                traits: collections.abc.Collection[str]) -> bool:
    """Whether a provider in Placement is ours."""
    # The trait alone proves nothing: anybody can set it on anything, the
    # compute node's own provider among them.
    return bool(parent) and MARKER_TRAIT in traits and bool(
        re.search(rf'({_MARK}|~[0-9a-f]{{12}}~)', name))


def region_provider_name(nodename: str, device: model.Device,
                         region: model.Region) -> str:
    return _provider_name(nodename, f'{device.address}_{region.name}')


def class_provider_name(nodename: str, resource_class: str) -> str:
    return _provider_name(nodename, resource_class)


def class_of_provider(name: str) -> str | None:
    """The class that a provider of this name counts; None for a Device's."""
    # A Device's has an address in its name, which no class has.
    _host, mark, rest = name.rpartition(_MARK)
    return rest if mark and is_resource_class(rest) else None


def class_provider_uuid(root: str, resource_class: str) -> str:
    """The uuid of the provider that counts a class for the whole host.

    :param root: uuid of the compute node's provider
    """
    return str(uuid.uuid5(uuid.UUID(root), f'accel/{resource_class}'))


def provider_uuid(root: str, address: model.PciAddress | str,
                  region: str | None = None) -> str:
    """The provider's uuid: uuid5 in the name space of the compute node's.

    :param root: uuid of the compute node's provider
    :param address: the Device's
    :param region: the Region's name, where it has a provider of its own
    """
    name = f'accel/{address}' if region is None else (
        f'accel/{address}/{region}')
    return str(uuid.uuid5(uuid.UUID(root), name))


def alias(group: str, provider: str, index: int, ids: str = '',
          variant: str = '', card: model.PciAddress | None = None) -> str:
    """The user alias of a ``<hostdev>``, naming what it serves and what it is.

    libvirt (formatdomain, "Devices"): a user alias starts with ``ua-`` and
    has only letters, digits, underscores and hyphens; it is unique in its
    domain.

    :param group: the profile's group, e.g. ``ACCEL0``, or '' where a flavor
        asks for the class without one
    :param provider: uuid
    :param index: runs over the hostdevs of this group and provider
    :param ids: vendor and product id of the function, ``10de:2330``, or ''
        where it can have others another time
    :param variant: the Region's; what it was made of, which the uuid does not
        tell: a Device's only Region has that of the Device
    :param card: the Device of an mdev, which its uuid does not tell
    """
    return f'ua-accel-{group or "flavor"}-{provider}-{index}' + (
        f'-{ids.replace(":", "")}' if ids else '') + (
        f'-t{_digest(variant)}' if variant else '') + (
        '-c' + re.sub('[:.]', '-', str(card)) if card else '')


def mdev_uuid(server: str, provider: str, index: int) -> str:
    """The uuid of the mdev that a server gets of a provider.

    A pure function of who and what, so that a second try, after whatever
    happened to the first, makes the same mdev and not another.

    :param index: runs over the server's mdevs of this provider
    """
    return str(uuid.uuid5(uuid.UUID(provider), f'mdev/{server}/{index}'))


def is_mdev_of(text: str, server: str,
               given_by: collections.abc.Iterable[str]) -> bool:
    """Whether it is the uuid of an mdev that a server got of one of these.

    :param given_by: uuids of providers
    """
    return is_mdev_uuid(text) and any(
        mdev_uuid(server, provider, index) == text
        for provider in given_by for index in range(_MDEVS))


def is_parent_name(text: str) -> bool:
    """Whether it can be a device's name in mdev_bus, and nothing else."""
    return bool(re.fullmatch(r'[.:]*[\w-][\w.:-]*', text, re.ASCII))


def is_mdev_type(text: str) -> bool:
    """Whether it can be an mdev type's name in sysfs, and nothing else."""
    return bool(re.fullmatch(r'\.*[\w+-][\w.+-]*', text, re.ASCII))


def is_mdev_uuid(text: str) -> bool:
    """Whether an mdev could be of ours: others are given random uuids."""
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
    """Group and provider of an alias of ours, or None for any other."""
    match = _ALIAS.fullmatch(text)
    return (match['group'], match['provider']) if match else None


def ids_of_alias(text: str) -> str:
    """Vendor and product id that an alias of ours says, '' if none."""
    match = _ALIAS.fullmatch(text)
    return (f'{match["vendor"]}:{match["product"]}'
            if match and match['vendor'] else '')


def card_of_alias(text: str) -> model.PciAddress | None:
    """The Device that an alias of ours says an mdev is of, None if none."""
    match = _ALIAS.fullmatch(text)
    return (model.PciAddress.parse('{domain}:{bus}:{slot}.{function}'.format(
        **match.groupdict())) if match and match['domain'] else None)


def is_of_variant(text: str, variant: str) -> bool | None:
    """Whether an alias of ours says a Region's variant; None if it says none.
    """
    match = _ALIAS.fullmatch(text)
    return (match['variant'] == _digest(variant)
            if match and match['variant'] else None)


@functools.cache
def _standard_traits() -> frozenset[str]:
    return frozenset(os_traits.get_traits())


def _custom(name: str) -> str:
    if name.startswith('CUSTOM_'):
        return re.sub(r'[^A-Z0-9_]+', '_', name)
    # What is not allowed becomes one _ however much of it there is.
    return os_traits.normalize_name(name)


def _digest(facts: str) -> str:
    return uuid.uuid5(uuid.NAMESPACE_OID, facts).hex[:8]


def _provider_name(nodename: str, rest: str) -> str:
    # A long name loses of the host's what is too much; the uuid, not the
    # name, is identity.
    name = f'{nodename}{_MARK}{rest}'
    if len(name) <= _NAME_LIMIT:
        return name
    digest = uuid.uuid5(uuid.NAMESPACE_DNS, name).hex[:12]
    room = _NAME_LIMIT - len(f'~{digest}{_MARK}{rest}')
    if room >= 0:
        return f'{nodename[:room]}~{digest}{_MARK}{rest}'
    # Not a class's, but a Region's may be as long.
    return f'{name[:90]}~{digest}~{name[-90:]}'
