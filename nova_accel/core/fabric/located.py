# SPDX-License-Identifier: Apache-2.0
"""The partitions of a manager, as sets of the machine's cards."""

import collections.abc
import dataclasses
import re

from nova_accel.core import model
from nova_accel.core.fabric import definition
from nova_accel.core.fabric import manager
from nova_accel.core.fabric import module_map

#: How many sets of the manager a message names.
_MAX_NAMED = 3

#: GV100 and GA100 (the PCI ID database). Their links need software to be
#: trained; later ones train them alone (ALI).
_WITHOUT_ALI = re.compile('10de:(1d[89a-f].|20[89a-f].)')

_FILE = '[nova_accel] link_domains'


@dataclasses.dataclass(frozen=True)
class Located:
    """What a manager lists, on this machine.

    :param partitions: as the manager lists them, with their state
    :param modules: the cards by module
    :param cards: the cards of each partition by its number, without
        partitions that cannot be offered
    :param faulty: by the number of each partition that needs links which have
        failed, the cards that have these links
    :param problems: why partitions cannot be offered, one line each
    """

    partitions: tuple[manager.Partition, ...] = ()
    modules: module_map.Modules = dataclasses.field(default_factory=dict)
    cards: collections.abc.Mapping[int, frozenset[str]] = dataclasses.field(
        default_factory=dict)
    faulty: collections.abc.Mapping[int, frozenset[str]] = dataclasses.field(
        default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def known_cards(self) -> frozenset[str]:
        """The cards of the fabric, also those of no usable partition."""
        return frozenset(map(str, self.modules.values()))

    @property
    def unlisted(self) -> frozenset[str]:
        """The cards of the fabric that are in no partition.

        No guest can use them. None if the manager lists no partition at all.
        """
        return frozenset(
            str(address) for module, address in self.modules.items()
            if self.partitions and module not in self._listed)

    @property
    def is_complete(self) -> bool:
        """Whether it is known which card each module is."""
        return bool(self.partitions) and self.modules.keys() >= self._listed

    @property
    def _listed(self) -> frozenset[int]:
        return frozenset().union(
            *(partition.modules for partition in self.partitions))

    def find(self, addresses: collections.abc.Iterable[model.Address],
             ) -> manager.Partition | None:
        """Return the partition with exactly these cards, None if none has."""
        wanted = frozenset(map(str, addresses))
        return next((partition for partition in self.partitions
                     if self.cards.get(partition.id) == wanted), None)

    def with_problems(self, problems: collections.abc.Iterable[str],
                      ) -> 'Located':
        """Return the same with more problems, which come first."""
        return dataclasses.replace(self, problems=(*problems, *self.problems))

    def merge(self, configured: model.Links,
              ) -> tuple[model.Links, list[str]]:
        """Replace what a file says about the cards of the manager.

        :param configured: the content of the file
        :returns: also a message for each set that is not the manager's
        """
        ours = frozenset().union(*self.cards.values())
        known = tuple(dict.fromkeys(self.cards.values()))
        problems = [
            self._contradiction(word, cards)
            for word, sets in (('partition', configured.partitions),
                               ('island', configured.islands))
            for cards in sets if cards & ours
            and not (word == 'partition' and cards in known)]
        whole = tuple(dict.fromkeys(
            cards for number, cards in self.cards.items()
            if number not in self.faulty))
        return model.Links(
            (*whole, *(cards for cards in configured.partitions
                       if not cards & ours)),
            tuple(cards for cards in configured.islands
                  if not cards & ours),
            frozenset().union(*self.faulty.values())), problems

    def _contradiction(self, word: str, cards: frozenset[str]) -> str:
        near = sorted((number for number, own in self.cards.items()
                       if own & cards),
                      key=lambda number: (len(self.cards[number] ^ cards),
                                          number))[:_MAX_NAMED]
        return (f'{_FILE}: the {word} {_named(cards)} is not used: the '
                'fabric manager has '
                + ', '.join(f'partition {number} of '
                            f'{_named(self.cards[number])}'
                            for number in near)
                + f'; remove it from the file, or correct '
                  f'"modules" in {definition.OPTION}')


#: That of a host without a fabric manager.
NONE = Located()


def locate(partitions: collections.abc.Sequence[manager.Partition],
           configured: module_map.Modules, known: module_map.Modules,
           functions: collections.abc.Iterable[model.Function],
           failed: collections.abc.Collection[manager.FailedLinks] = (),
           ) -> Located:
    """Find the cards of partitions.

    :param configured: the cards by module as the operator says
    :param known: the same as the driver of the host said
    :param functions: those of the machine
    :param failed: the failed links that the manager lists apart
    """
    found, disputed = module_map.agree(configured, known)
    by_address = {function.address: function for function in functions}
    listed = {member.module: member for partition in partitions
              for member in partition.members}
    old = sorted(str(address) for module, address in found.items()
                 if module in listed and address in by_address
                 and _WITHOUT_ALI.fullmatch(by_address[address].ids))
    if old:
        return Located(tuple(partitions), found, problems=(
            f'{definition.OPTION}: {", ".join(old)}: partitions of A100 and '
            'older GPUs cannot be activated: their links stay inactive if '
            'they are reset afterwards, and they are reset when a guest '
            'starts; activate them yourself, and list them in '
            'link_domains',))
    usable = {}
    problems = [f'{text}; partitions with it are not offered'
                for text in dict.fromkeys(disputed.values())]
    for module, member in sorted(listed.items()):
        if module in disputed:
            continue
        if module not in found:
            problems.append(
                f'no card is known for module {module}; partitions with it '
                'are not offered; add it to "modules", or bind the GPUs to '
                'the driver nvidia once')
        elif member.address not in (None, found[module]):
            problems.append(
                f'module {module} is {found[module]} as configured or as the '
                f'driver of the host said, but {member.address} as the '
                'manager says; partitions with it are not offered')
        elif found[module] not in by_address:
            problems.append(
                f'module {module} is {found[module]}, which does not exist '
                'on this host; partitions with it are not offered')
        else:
            usable[module] = str(found[module])
    cards = {partition.id: frozenset(usable[module]
                                     for module in partition.modules)
             for partition in partitions
             if partition.modules <= usable.keys()}
    cards_failed = {str(one.address) for one in failed}
    faulty = {partition.id: few for partition in partitions
              if partition.id in cards and (
                  few := _faulty(partition, usable, cards_failed))}
    problems += [
        f'partition {number} is not offered: links of {_named(few)} have '
        'failed; look at the log of the fabric manager'
        for number, few in faulty.items()]
    return Located(
        tuple(partitions), found,
        cards, faulty, tuple(f'{definition.OPTION}: {text}'
                             for text in problems))


def _faulty(partition: manager.Partition,
            usable: collections.abc.Mapping[int, str],
            failed: collections.abc.Container[str]) -> frozenset[str]:
    """Return the cards with failed links that a partition needs.

    A card alone needs no links.

    :param usable: cards by module
    :param failed: cards whose links the manager lists as failed
    """
    if len(partition.members) < 2:
        return frozenset()
    return frozenset(usable[member.module] for member in partition.members
                     if member.has_failed_links
                     or usable[member.module] in failed)


def _named(cards: frozenset[str]) -> str:
    return ' '.join(sorted(cards))
