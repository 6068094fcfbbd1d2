# SPDX-License-Identifier: Apache-2.0
"""The device request of a flavor and an image, parsed once."""

import collections.abc
import functools

from nova_accel.core import naming
from nova_accel.core.request import affinity
from nova_accel.core.request import alternatives
from nova_accel.core.request import device_profile
from nova_accel.core.request import flavor_specs


class Request:
    """The devices that a flavor and an image ask for.

    :param extra_specs: of the flavor, with its profile expanded
    :param image_traits: the traits that the image requires
    """

    def __init__(self, extra_specs: collections.abc.Mapping[str, str],
                 image_traits: collections.abc.Iterable[str] = ()) -> None:
        self._specs = extra_specs
        self._image_traits = image_traits

    @property
    def name(self) -> str:
        """The profile's name, for messages."""
        return self._specs.get(flavor_specs.EXPANDED_KEY, 'the flavor')

    @functools.cached_property
    def groups(self) -> flavor_specs.Groups:
        """The profile's groups, by name."""
        return flavor_specs.read(self._specs, self._image_traits)

    @functools.cached_property
    def group_names(self) -> collections.abc.Mapping[str, str]:
        """The names that the profile gives to groups, by ``ACCEL0``."""
        return flavor_specs.names(self._specs)

    @property
    def guest_switches(self) -> bool:
        """Whether devices that share a PCIe switch share one in the guest."""
        return self._specs.get(flavor_specs.SWITCHES_KEY) == 'true'

    @functools.cached_property
    def rules(self) -> tuple[affinity.Rule, ...]:
        """The affinity rules.

        :raises errors.ProfileError: if a rule cannot be understood
        """
        return flavor_specs.rules(self._specs)

    @property
    def gpu_cliques(self) -> bool:
        """Whether the guest is told which of its GPUs are peers."""
        return self._specs.get(flavor_specs.CLIQUES_KEY) == 'true'

    @property
    def same_domain(self) -> str:
        """Whether servers are to be in one host domain.

        :returns: ``required``, ``preferred`` or ''
        :raises errors.ProfileError: if the value is another one
        """
        return flavor_specs.same_domain(self._specs)

    @functools.cached_property
    def classes(self) -> frozenset[str]:
        """The requested resource classes that devices may have."""
        return frozenset(flavor_specs.classes(self._specs))

    @functools.cached_property
    def amounts(self) -> collections.abc.Mapping[str, int]:
        """How many units of each of these classes are requested."""
        return flavor_specs.amounts(self._specs)

    @functools.cached_property
    def units(self) -> frozenset[str]:
        """The resource classes in which device providers count units."""
        return frozenset(map(naming.unit_class, self.classes))

    @functools.cached_property
    def programs(self) -> frozenset[str]:
        """The resource classes of groups with a bitstream to program."""
        return frozenset(name for group in self.groups.values()
                         if group.bitstream for name in group.resources)

    @functools.cached_property
    def alternatives(self) -> list[str]:
        """What tells the alternatives apart; empty without alternatives."""
        return alternatives.names(self.groups)

    def pinned(self, alternative: int) -> 'Request':
        """Return the request for one of the alternatives only.

        :param alternative: its number
        """
        return parse(flavor_specs.pinned(self._specs, alternative),
                     self._image_traits)

    def rank(self, alternative: int) -> int:
        """Return how far a host with an alternative is behind the best one.

        :param alternative: its number
        :returns: 0 with ``per: host``
        """
        return (0 if self._specs.get(flavor_specs.PER_KEY)
                == device_profile.HOST else alternative)

    @functools.cached_property
    def all_traits(self) -> frozenset[str]:
        """All traits that are named, required or forbidden."""
        return frozenset(trait for group in (*self.groups.values(),
                                             *self.groups.own)
                         for trait in group.traits).union(
            self.groups.traits, *(one for group in self.groups.values()
                                  for one in group.any_of))

    def has_member(self, member: str) -> bool:
        """Whether any rule is about the guest, or about the network.

        :param member: affinity.GUEST or affinity.NETWORK
        :raises errors.ProfileError: as :attr:`rules`
        """
        return affinity.has_member(self.rules, member)

    def checked(self) -> 'Request':
        """Return this request after parsing its rules.

        :raises errors.ProfileError: as :attr:`rules` and :attr:`same_domain`
        """
        _parsed = self.rules, self.same_domain
        return self

    def traits(self, group: str) -> tuple[str, ...]:
        """Return the traits that a group requires of its devices."""
        traits = self.groups[group].traits
        return tuple(trait for trait, strength in traits.items()
                     if strength == device_profile.REQUIRED)


def parse(extra_specs: collections.abc.Mapping[str, str],
          image_traits: collections.abc.Iterable[str] = ()) -> Request:
    """Return the request of a flavor and an image, cached by its values."""
    return _parse(frozenset(extra_specs.items()), frozenset(image_traits))


@functools.lru_cache(maxsize=256)
def _parse(items: frozenset[tuple[str, str]], image_traits: frozenset[str],
           ) -> Request:
    return Request(dict(items), image_traits)
