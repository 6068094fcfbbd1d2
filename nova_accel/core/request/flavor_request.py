# SPDX-License-Identifier: Apache-2.0
"""What a server asks for by its flavor and its image: parsed once."""

import collections.abc
import functools

from nova_accel.core import naming
from nova_accel.core.request import affinity
from nova_accel.core.request import device_profile
from nova_accel.core.request import flavor_specs


class Request:
    """What a flavor asks for, by its extra specs, and an image beside it.

    :param extra_specs: of the flavor, with its profile expanded
    :param image_traits: that the image requires
    """

    def __init__(self, extra_specs: collections.abc.Mapping[str, str],
                 image_traits: collections.abc.Iterable[str] = ()) -> None:
        self._specs = extra_specs
        self._image_traits = image_traits

    @property
    def name(self) -> str:
        """Of the profile, for people."""
        return self._specs.get(flavor_specs.EXPANDED_KEY, 'the flavor')

    @functools.cached_property
    def groups(self) -> flavor_specs.Groups:
        """The profile's groups, by name."""
        return flavor_specs.read(self._specs, self._image_traits)

    @functools.cached_property
    def rules(self) -> tuple[affinity.Rule, ...]:
        """Where devices are to be.

        :raises errors.ProfileError: if they say more than is known here
        """
        return flavor_specs.rules(self._specs)

    @functools.cached_property
    def classes(self) -> frozenset[str]:
        """The resource classes that are, or could be, those of devices."""
        return frozenset(flavor_specs.classes(self._specs))

    @functools.cached_property
    def units(self) -> frozenset[str]:
        """The classes in which devices' providers count their units."""
        return frozenset(map(naming.unit_class, self.classes))

    @functools.cached_property
    def programs(self) -> frozenset[str]:
        """The classes of which something is to be programmed."""
        return frozenset(name for group in self.groups.values()
                         if group.bitstream for name in group.resources)

    def concerns(self, member: str) -> bool:
        """Whether a rule is about the guest, or the network.

        :raises errors.ProfileError: as :attr:`rules`
        """
        return affinity.concern(self.rules, member)

    def checked(self) -> 'Request':
        """The same, if its rules can be understood.

        :raises errors.ProfileError: as :attr:`rules`
        """
        _rules = self.rules
        return self

    def traits(self, group: str) -> tuple[str, ...]:
        """The traits that a group requires of its devices."""
        traits = self.groups[group].traits
        return tuple(trait for trait, strength in traits.items()
                     if strength == device_profile.REQUIRED)


def parse(extra_specs: collections.abc.Mapping[str, str],
          image_traits: collections.abc.Iterable[str] = ()) -> Request:
    """The request of a flavor and an image; the same one for the same."""
    return _parse(frozenset(extra_specs.items()), frozenset(image_traits))


@functools.lru_cache(maxsize=256)
def _parse(items, image_traits) -> Request:
    return Request(dict(items), image_traits)
