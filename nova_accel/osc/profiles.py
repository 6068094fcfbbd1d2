# SPDX-License-Identifier: Apache-2.0
"""The device profiles of a cloud, as flavors and servers use them.

What a profile asks for is in the files that nova-api reads, and in the flavors
of the servers that were created with it.
"""

import argparse
import collections
import collections.abc
import dataclasses
import logging
import sys

from nova_accel.core import errors
from nova_accel.core.request import affinity
from nova_accel.core.request import device_profile
from nova_accel.core.request import flavor_request
from nova_accel.core.request import flavor_specs
from nova_accel.osc import compute
from nova_accel.profiles import store


@dataclasses.dataclass(frozen=True)
class Profile:
    """A device profile and its use.

    :param document: its file, if there is one here
    :param extra_specs: of a server that has it, None if there is no server
    :param flavors: names of the flavors that name it
    :param statuses: how many servers were created with it, by their status
    """

    name: str
    document: device_profile.Profile | None = None
    extra_specs: collections.abc.Mapping[str, str] | None = None
    flavors: tuple[str, ...] = ()
    statuses: collections.abc.Mapping[str, int] = dataclasses.field(
        default_factory=dict)

    @property
    def servers(self) -> int:
        """How many servers were created with it."""
        return sum(self.statuses.values())

    @property
    def groups(self) -> list[device_profile.Group] | None:
        """Its groups, None if they are not known."""
        if self.document:
            return list(self.document.groups)
        if self.extra_specs:
            return list(flavor_specs.read(self.extra_specs).values())
        return None

    @property
    def rules(self) -> tuple[affinity.Rule, ...]:
        """Its affinity rules, as far as they are known.

        :raises errors.ProfileError: if a rule cannot be understood
        """
        if self.document:
            return self.document.rules
        return affinity.loads(self.extra_specs or {})

    def request(self, own: collections.abc.Mapping[str, str] = {},
                ) -> flavor_request.Request:
        """Return what a server with it asks for.

        :param own: the extra specs of the server's flavor
        :raises errors.AccelError: if that is not known, or contradicts the
            flavor
        """
        if self.document:
            return flavor_request.parse(flavor_specs.expand(
                self.document, own)).checked()
        if self.extra_specs:
            return flavor_request.parse(self.extra_specs).checked()
        raise errors.AccelError(
            f'device profile {errors.quote(self.name)}',
            'its contents are not known: it is in no file here, and no server '
            'has it', 'set --profile-dir to the profiles of nova-api')


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the option of commands that read profiles."""
    parser.add_argument(
        '--profile-dir', metavar='<directory>', action='append', default=[],
        help='Directory with the device profiles of nova-api; can be '
             'repeated. Without it, what a profile asks for is read from the '
             'servers that have it')


def find(nova: compute.Compute, directories: collections.abc.Iterable[str],
         ) -> list[Profile]:
    """Return the device profiles of a cloud, by name.

    :param directories: of files with profiles
    :raises errors.AccelError: if Nova or a directory cannot be read
    """
    documents = _documents(directories)
    flavors = collections.defaultdict(list)
    for flavor in nova.flavors():
        if flavor.profile:
            flavors[flavor.profile].append(flavor.name)
    statuses: dict[str, collections.Counter[str]] = collections.defaultdict(
        collections.Counter)
    specs: dict[str, collections.abc.Mapping[str, str]] = {}
    for server in nova.servers():
        name = server.flavor.extra_specs.get(flavor_specs.EXPANDED_KEY)
        if name is not None:
            statuses[name][server.status] += 1
            # Nova shows the newest server first.
            specs.setdefault(name, server.flavor.extra_specs)
    return [Profile(name, documents.get(name), specs.get(name),
                    tuple(sorted(flavors[name])), dict(statuses[name]))
            for name in sorted({*documents, *flavors, *statuses})]


def find_one(nova: compute.Compute, name: str,
             directories: collections.abc.Iterable[str]) -> Profile:
    """Return one profile.

    :raises errors.AccelError: as :func:`find`, and if it is not known
    """
    for profile in find(nova, directories):
        if profile.name == name:
            return profile
    raise errors.AccelError(
        f'device profile {errors.quote(name)}', 'is not known: no flavor has '
        f'{flavor_specs.PROFILE_KEY}={name}, and no file here has it',
        'see "openstack accel profile list"')


def contents(nova: compute.Compute, name: str,
             directories: collections.abc.Iterable[str]) -> Profile:
    """Return one profile; Nova is asked only if no file has it.

    :raises errors.AccelError: as :func:`find_one`
    """
    document = _documents(directories).get(name)
    return (Profile(name, document) if document
            else find_one(nova, name, directories))


def request_of(nova: compute.Compute, flavor: compute.Flavor,
               directories: collections.abc.Iterable[str],
               image_traits: collections.abc.Iterable[str] = (),
               ) -> flavor_request.Request:
    """Return what a flavor asks for, also if its profile is not expanded.

    :raises errors.AccelError: as :func:`find_one`, and if the contents of the
        profile are not known
    """
    if flavor.profile is None or flavor.is_expanded:
        return flavor_request.parse(flavor.extra_specs, image_traits).checked()
    return contents(nova, flavor.profile, directories).request(
        flavor.extra_specs)


def _documents(directories: collections.abc.Iterable[str],
               ) -> dict[str, device_profile.Profile]:
    # The command prints the problems itself.
    logging.getLogger('nova_accel').addHandler(logging.NullHandler())
    profiles = store.Store(directories)
    found = {profile.name: profile for profile in profiles.all()}
    if missing := profiles.missing():
        raise missing[0]
    for problem in profiles.problems():
        print(problem, file=sys.stderr)
    return found
