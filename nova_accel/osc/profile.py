# SPDX-License-Identifier: Apache-2.0
"""``openstack accel profile``: device profiles that flavors use.

The columns are those of ``openstack accelerator device profile``, as far as a
profile of Nova's flavors has them.
"""

import argparse

from osc_lib.command import command

from nova_accel.core import errors
from nova_accel.osc import cloud
from nova_accel.osc import columns
from nova_accel.osc import profiles


class ListProfile(command.Lister):
    """List device profiles, and how many flavors and servers use them.

    The groups are those of the files in --profile-dir, or else those of the
    newest server with the profile.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        profiles.add_options(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Output:
        return ('name', 'groups', 'description', 'flavors', 'servers'), [
            (profile.name, columns.Groups(profile.groups),
             _description(profile), len(profile.flavors), profile.servers)
            for profile in profiles.find(
                cloud.of(self).compute,
                parsed_args.profile_dir)]


class ShowProfile(command.ShowOne):
    """Show a device profile."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument('profile', metavar='<profile>',
                            help='Name of the device profile')
        profiles.add_options(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> columns.Output:
        profile = profiles.find_one(
            cloud.of(self).compute, parsed_args.profile,
            parsed_args.profile_dir)
        return self.dict2columns({
            'name': profile.name,
            'groups': columns.Groups(profile.groups),
            'description': _description(profile),
            'affinity': columns.Lines(rules(profile)),
            'flavors': columns.Lines(profile.flavors),
            'servers': profile.servers,
        })


def _description(profile: profiles.Profile) -> str | None:
    return profile.document.description if profile.document else None


def rules(profile: profiles.Profile) -> list[str]:
    """Return the affinity rules in words."""
    try:
        return list(map(str, profile.rules))
    except errors.ProfileError as error:
        return [str(error)]
