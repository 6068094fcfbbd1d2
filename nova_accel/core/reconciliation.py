# SPDX-License-Identifier: Apache-2.0
"""Where the three truths disagree: the machine, the ledger and the record.

What is found is reported, and what nobody can be sure of is withheld from
others. Nothing is ever taken from a server.
"""

import collections
import collections.abc
import dataclasses

from nova_accel.core import hostdev
from nova_accel.core import identity
from nova_accel.core import model
from nova_accel.core import providers


@dataclasses.dataclass(frozen=True)
class Finding:
    """One disagreement.

    :param thing: what it is about
    :param provider: uuid of the provider that is concerned, or ''
    :param withheld: how many of its units nobody may have meanwhile
    :param passing: an operation that is going on explains it; it is worth
        words only where it stays
    """

    thing: str
    reason: str
    remedy: str
    provider: str = ''
    withheld: int = 0
    passing: bool = False

    def __str__(self) -> str:
        return f'{self.thing}: {self.reason}; {self.remedy}'


@dataclasses.dataclass(frozen=True)
class Truths:
    """What is so, according to each.

    :param host: the machine
    :param offered: its Regions by provider
    :param known: names of our providers in Placement, by uuid
    :param promised: amounts by consumer, by provider
    :param held: hostdevs by domain; also those that are not ours
    """

    host: model.Host
    offered: collections.abc.Mapping[str, providers.Offered]
    known: collections.abc.Mapping[str, str]
    promised: collections.abc.Mapping[str, collections.abc.Mapping[str, int]]
    held: collections.abc.Mapping[str, hostdev.Hostdevs]


def compare(truths: Truths) -> tuple[Finding, ...]:
    """Everything that does not fit, the worst first."""
    return (*_held_twice(truths), *_held_unpromised(truths),
            *_held_and_gone(truths), *_promised_not_held(truths))


def _held_twice(truths) -> collections.abc.Iterator[Finding]:
    """One device in several definitions."""
    holders = collections.defaultdict(list)
    for uuid, hostdevs in truths.held.items():
        for device in hostdevs:
            holders[device.address].append(uuid)
    for address, uuids in holders.items():
        if len(uuids) > 1:
            yield Finding(
                f'device {address}', 'is in the definitions of '
                + ' and '.join(sorted(uuids)),
                'delete or move all of them but one; they cannot run at the '
                'same time')


def _held_unpromised(truths) -> collections.abc.Iterator[Finding]:
    """Units that are held, beyond what the ledger knows of."""
    for item in truths.offered.values():
        units = _held_units(item, truths.held)
        promised = truths.promised.get(item.uuid, {})
        excess = len(units) - sum(promised.values())
        if excess <= 0:
            continue
        strangers = sorted({uuid for uuid in units.values()
                            if uuid not in promised} or {*units.values()})
        yield Finding(
            f'resource provider {item.name}',
            f'{len(units)} of it are held, {sum(promised.values())} are '
            f'promised: {", ".join(strangers)} should not have it',
            'where the server lives on another host, undefine its domain '
            'here; otherwise "nova-manage placement heal_allocations '
            '--instance"', item.uuid, excess)


def _held_units(item, held) -> dict[model.Unit, str]:
    """Who holds which units of a Region."""
    by_address = {device.address: uuid for uuid, hostdevs in held.items()
                  for device in hostdevs}
    if item.region.mdev_type:
        return {(device.address,): uuid for uuid, hostdevs in held.items()
                for device in hostdevs
                if isinstance(device.address, model.MdevAddress)
                and _provider(device) == item.uuid}
    return {unit: by_address[address] for unit in item.region.units
            for address in unit if address in by_address}


def _held_and_gone(truths) -> collections.abc.Iterator[Finding]:
    """Devices of servers that are not there, or not offered any more."""
    there = {function.address for function in truths.host.functions}
    refused = {refusal.address: refusal for refusal in truths.host.refusals}
    for uuid, hostdevs in truths.held.items():
        for device in hostdev.ours(hostdevs):
            provider = _provider(device)
            thing = f'device {device.address} of server {uuid}'
            if isinstance(device.address, model.MdevAddress):
                if provider not in truths.offered:
                    yield Finding(
                        thing, 'nothing offers it any more',
                        'put its device and its entry back, or move the '
                        'server', provider)
            elif device.address not in there:
                yield Finding(
                    thing, 'is not there any more',
                    'put the card back where it was, or move the server: it '
                    'cannot be started here', provider)
            elif device.address in refused:
                refusal = refused[device.address]
                yield Finding(
                    thing, f'is not offered any more: {refusal.reason}',
                    refusal.remedy or 'move the server', provider)


def _promised_not_held(truths) -> collections.abc.Iterator[Finding]:
    """Units that the ledger has given away and that nobody has."""
    held = collections.Counter(
        (_provider(device), uuid) for uuid, hostdevs in truths.held.items()
        for device in hostdev.ours(hostdevs))
    for provider, promised in truths.promised.items():
        has = sum(count for (other, _uuid), count in held.items()
                  if other == provider)
        if has >= sum(promised.values()):
            # A resize that waits to be confirmed has its own consumer.
            continue
        lacking = ', '.join(sorted(
            consumer for consumer, amount in promised.items()
            if held[provider, consumer] < amount))
        yield Finding(
            f'resource provider {truths.known.get(provider, provider)}',
            f'{sum(promised.values())} of it are promised, {has} are held: '
            f'{lacking} should have it', 'where an operation is going on, or '
            'a resize waits to be confirmed, nothing; otherwise reboot the '
            'server hard; where there is none, or it is on another host, '
            '"openstack resource provider allocation unset"', provider,
            passing=True)


def _provider(device) -> str | None:
    alias = identity.parse_alias(device.alias)
    return alias[1] if alias else None
