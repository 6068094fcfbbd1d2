# SPDX-License-Identifier: Apache-2.0
"""The devices of all compute nodes, as Placement's API shows them.

The answers to three requests are enough for any number of compute nodes: the
providers with our trait, the compute nodes with our marking unit
(:data:`nova_accel.core.naming.HOST_CLASS`), and the allocation candidates for
one of these units, whose ``provider_summaries`` have all providers of each
compute node (Placement microversions 1.27 and 1.29).
"""

import collections
import collections.abc
import dataclasses
import enum
import typing

from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.placement import device_traits
from nova_accel.core.placement import dirt
from nova_accel.core.placement import drain
from nova_accel.core.placement import firmware
from nova_accel.core.placement import providers

#: A JSON object of Placement's.
Json = collections.abc.Mapping[str, typing.Any]

#: Why a device is not free, by trait of its provider.
REASONS = {
    providers.MISSING: 'missing',
    providers.REFUSED: 'refused',
    providers.NOT_NAMED: 'not in device_spec',
    providers.DISPUTED: 'held without an allocation',
    device_traits.FAULTY: 'failed links',
    **{trait: state.value.replace('_', ' ')
       for state, trait in providers.WITHHELD.items()},
}

#: An operator has reserved the inventory of a device by hand.
RESERVED = 'reserved'


# Traits of providers whose units no new server gets.
_KEPT_BACK = frozenset({*REASONS, drain.TRAIT, dirt.TRAIT, dirt.CLEAN})


class Status(enum.StrEnum):
    """Whether a new server can get units of a device."""

    FREE = 'free'
    PARTLY_HELD = 'partly held'
    HELD = 'held'
    WITHHELD = 'withheld'


@dataclasses.dataclass(frozen=True)
class Units:
    """The units of one Region.

    :param provider: uuid of the resource provider that has them
    :param name: name of the Region if its device has several, else ''
    :param traits: those that a profile can require
    :param free: units that a new server can get
    :param reasons: why units are not available, if they are not held
    :param is_live: whether the state of the units can be live-migrated
    :param is_kept_back: whether no new server gets the units of a server that
        gives them back
    """

    provider: str
    name: str
    resource_class: str
    traits: frozenset[str]
    used: int
    free: int
    reasons: tuple[str, ...] = ()
    is_live: bool = False
    is_kept_back: bool = False

    @property
    def status(self) -> Status:
        if self.free:
            return Status.PARTLY_HELD if self.used else Status.FREE
        return Status.HELD if self.used else Status.WITHHELD


@dataclasses.dataclass(frozen=True)
class Device:
    """A device of a compute node.

    :param uuid: of its resource provider
    :param address: its PCI address, as text
    :param known_firmware: the versions that it has shown
    """

    uuid: str
    host: str
    address: str
    properties: device_traits.Properties
    regions: tuple[Units, ...]
    drained: drain.Drain | None = None
    known_firmware: frozenset[firmware.Version] = frozenset()


@dataclasses.dataclass(frozen=True)
class Host:
    """A compute node.

    :param uuid: of its resource provider
    :param name: of its resource provider, the hypervisor's host name
    :param counts: free and used units by resource class
    :param drained: the drain of all its devices
    :param resources: free amounts of its own resources, such as MEMORY_MB
    """

    uuid: str
    name: str
    devices: tuple[Device, ...]
    drained: drain.Drain | None = None
    resources: collections.abc.Mapping[str, int] = dataclasses.field(
        default_factory=dict)

    @property
    def units(self) -> collections.abc.Iterator[tuple[Device, Units]]:
        """Each Region with its device."""
        for device in self.devices:
            for region in device.regions:
                yield device, region


def hosts(ours: collections.abc.Iterable[Json],
          roots: collections.abc.Iterable[Json],
          summaries: collections.abc.Mapping[str, Json]) -> list[Host]:
    """Return the compute nodes with devices, by name.

    :param ours: the providers with our trait
    :param roots: the providers of the compute nodes
    :param summaries: ``provider_summaries`` by uuid; a provider that is
        missing there is left out
    """
    below = collections.defaultdict(list)
    for provider in ours:
        uuid = provider['uuid']
        if uuid in summaries and naming.class_of_provider(
                provider['name']) is None:
            below[provider['root_provider_uuid']].append(
                _Provider(uuid, provider['name'],
                          provider['parent_provider_uuid'], summaries[uuid]))
    return sorted((_host(root, below[root['uuid']], summaries.get(
        root['uuid'], {})) for root in roots), key=lambda host: host.name)


class _Provider:
    """A provider of a device or Region, and its summary."""

    def __init__(self, uuid: str, name: str, parent: str,
                 summary: Json) -> None:
        self.uuid = uuid
        self.address, self.region = naming.parse_provider_name(name)
        self.parent = parent
        self.traits = frozenset(summary['traits'])
        self.resources = {
            units: amounts for name, amounts in summary['resources'].items()
            if (units := naming.class_of_units(name))}


def _host(root: Json, below: list[_Provider], summary: Json) -> Host:
    cards = {provider.uuid: provider for provider in below
             if provider.parent == root['uuid']}
    traits = summary.get('traits', ())
    versions = firmware.loads(traits)
    regions: dict[str, list[Units]] = collections.defaultdict(list)
    for provider in below:
        card = provider.uuid if provider.uuid in cards else provider.parent
        regions[card].extend(_units(provider))
    devices = (Device(card.uuid, root['name'], card.address,
                      device_traits.loads(card.traits),
                      tuple(sorted(regions[card.uuid],
                                   key=lambda units: units.name)),
                      drain.loads(card.traits),
                      firmware.of_device(versions, card.address))
               for card in cards.values())
    return Host(root['uuid'], root['name'],
                tuple(sorted(devices, key=lambda device: device.address)),
                drain.loads(traits), {
                    name: amounts['capacity'] - amounts['used']
                    for name, amounts in summary.get('resources', {}).items()
                    if name != naming.HOST_CLASS})


def _units(provider: _Provider) -> collections.abc.Iterator[Units]:
    for resource_class, amounts in provider.resources.items():
        yield Units(
            provider.uuid, provider.region, resource_class,
            frozenset(trait for trait in provider.traits
                      if trait == naming.STRICT_TRAIT
                      or not naming.is_own_trait(trait))
            - naming.OUR_TRAITS,
            amounts['used'], max(0, amounts['capacity'] - amounts['used']),
            _reasons(provider.traits, amounts),
            naming.LIVE_TRAIT in provider.traits,
            _is_kept_back(provider.traits, amounts))


def _is_kept_back(traits: frozenset[str], amounts: Json) -> bool:
    # What a cleaner cleans is reserved while a server has it, too.
    return not _KEPT_BACK.isdisjoint(traits) or (
        amounts['capacity'] < amounts['used']
        and not any(map(dirt.is_trait, traits)))


def _reasons(traits: frozenset[str], amounts: Json) -> tuple[str, ...]:
    found = [REASONS[trait] for trait in sorted(traits) if trait in REASONS]
    if not amounts['capacity'] and not amounts['used']:
        if any(map(dirt.is_trait, traits)) and not found:
            found.append(model.WithheldState.DIRTY.value)
        elif not found:
            found.append(RESERVED)
    return tuple(found)
