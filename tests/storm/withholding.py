# SPDX-License-Identifier: Apache-2.0
"""Operators and faults withhold devices from new servers during a storm.

A host or a card is drained, a card becomes unhealthy, or the kernel blocks
its reader. No new server gets its devices meanwhile, and every server that
has one keeps it. Each whole card is for one-time use: no other server gets it
before it was freed.
"""

import collections.abc
import dataclasses
import random

from nova_accel.core import naming
from nova_accel.core.placement import dirt
from tests.functional import test_health
from tests.storm import storm

_BLOCKED = 'reader blocked:'


@dataclasses.dataclass
class Withholding:
    """A reason for which devices are withheld from new servers.

    :param host: name of the host
    :param card: address of the card, or '' for the whole host
    :param words: the kind of reason, for the log
    :param end: function that ends it
    :param is_known: whether nova-compute is bound to know it
    """

    host: str
    card: str
    words: str
    end: collections.abc.Callable[[], None]
    is_known: bool = True

    def __str__(self) -> str:
        return ' '.join(filter(None, (self.words, self.host, self.card)))


class Withholdings:
    """What is withheld at present, and the holders of one-time-use devices.

    :param cloud: tests.storm.entries.EntryStorm
    """

    def __init__(self, cloud) -> None:
        self._cloud = cloud
        self._every: list[Withholding] = []
        # The last holder of each whole card, by host and address.
        self._users: dict[tuple[str, str], str] = {}

    # Steps

    def begin(self, chance: random.Random, host: str,
              cards: collections.abc.Sequence[str]) -> None:
        """Withhold a card or all devices of a host."""
        begin = chance.choice((self._drain_host, self._drain_card,
                               self._break, self._block))
        if begun := begin(host, chance.choice(cards)):
            self._every.append(begun)
            self._cloud.note(str(begun))
            self._cloud.run_periodic_tasks()

    def end_one(self, chance: random.Random) -> None:
        """End a reason, or free the used devices of all hosts."""
        ended = chance.choice([*self._every, None])
        if ended:
            self._every.remove(ended)
            self._cloud.note(f'no longer: {ended}')
            ended.end()
        else:
            self._free_used()
        self._cloud.run_periodic_tasks()

    def end_all(self) -> None:
        """End all reasons, and free all used devices."""
        while self._every:
            self._every.pop().end()
        self._cloud.run_periodic_tasks()
        self._free_used()
        self._cloud.run_periodic_tasks()

    def change_entries(self, host: str) -> None:
        """Note that the entries of a host are other ones now.

        Its providers can be new ones, which nobody has drained, and errors
        from before are not counted.
        """
        for one in self._every:
            if one.host == host and one.card:
                one.is_known = False

    # Checks

    def check_new(self, devices: collections.abc.Iterable[tuple[str, str]],
                  card_of: collections.abc.Callable[[str, str], str]) -> None:
        """Check that a new server has no withheld device.

        :param devices: host and address of each
        :param card_of: returns the address of the card of a device
        """
        for host, address in devices:
            card = card_of(host, address)
            for one in self._every:
                if one.is_known and one.host == host and one.card in ('',
                                                                      card):
                    raise storm.Violation(
                        f'a new server got {address} of {host} in spite of '
                        f'this: {one}')

    def check_once(self, held: collections.abc.Mapping[tuple[str, str], str],
                   whole: collections.abc.Container[tuple[str, str]]) -> None:
        """Check that no whole card has had two servers."""
        for place, uuid in held.items():
            if place in whole and self._users.setdefault(place, uuid) != uuid:
                raise storm.Violation(
                    f'{uuid} has {place}, which {self._users[place]} had, and '
                    'nobody has freed it since')

    # Reasons

    def _drain_host(self, host, _card):
        return self._drain(host, '', self._cloud.compute_rp_uuids[host])

    def _drain_card(self, host, card):
        drained = [provider['uuid'] for name, provider
                   in self._cloud.providers(host).items() if card in name]
        return self._drain(host, card, *drained) if drained else None

    def _drain(self, host, card, *drained):
        def end():
            left = {provider['uuid'] for provider
                    in self._cloud.providers(host).values()}
            self._cloud.set_drained(False, *(
                uuid for uuid in drained if not card or uuid in left))

        self._cloud.set_drained(True, *drained)
        return Withholding(host, card, 'drained:', end)

    def _break(self, host, card):
        def write(number):
            (self._cloud.bus(host) / card / 'aer_dev_fatal').write_text(
                f'TOTAL_ERR_FATAL {number}\n')

        write(1)
        return Withholding(host, card, 'unhealthy:', lambda: write(0))

    def _block(self, host, card):
        if any(one.words == _BLOCKED for one in self._every):
            return None
        blocked = test_health.Blocked(card)
        blocked.setUp()
        self._cloud.addCleanup(blocked.over.set)
        return Withholding(host, card, _BLOCKED, blocked.cleanUp)

    def _free_used(self):
        held = self._cloud._held()
        for host in storm.HOSTS:
            for name, provider in self._cloud.providers(host).items():
                # A device that a server has is used again at once.
                if dirt.TRAIT in self._cloud._get_provider_traits(
                        provider['uuid']):
                    self._cloud.note(f'freed: {name}')
                    self._cloud.free_used(provider['uuid'])
                    self._cloud.freed(
                        host, naming.parse_provider_name(name)[0])
            self._cloud.computes[host].manager.reset()
        self._users = {place: uuid for place, uuid in self._users.items()
                       if held.get(place) == uuid}
