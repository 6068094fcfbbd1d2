# SPDX-License-Identifier: Apache-2.0
"""One group of a Profile."""

import collections.abc
import dataclasses

#: How strong a request for something is.
REQUIRED, PREFERRED, OFF = 'required', 'preferred', 'off'


@dataclasses.dataclass(frozen=True)
class Group:
    """Units that are taken from one resource provider.

    :param resources: amount by resource class; one class if it is a group of
        a document
    :param traits: ``required`` or ``forbidden`` by trait
    :param numa: whether the group shares one NUMA node with the profile's
        other groups, and with the guest if that has a NUMA topology:
        ``required``, ``preferred`` or ``off``
    :param bitstream: uuid of the Glance image to program into the device, or
        ''
    :param any_of: alternatives, the best first: the traits that each of them
        requires besides; empty if there are none
    """

    resources: collections.abc.Mapping[str, int]
    traits: collections.abc.Mapping[str, str]
    numa: str = PREFERRED
    bitstream: str = ''
    any_of: tuple[tuple[str, ...], ...] = ()


#: The groups of a Profile by their names in a flavor.
Groups = collections.abc.Mapping[str, Group]
