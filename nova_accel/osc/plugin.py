# SPDX-License-Identifier: Apache-2.0
"""The plugin of python-openstackclient (``openstack.cli.extension``).

The commands begin with ``accel``, as the extra spec of a flavor does. Cyborg's
begin with ``accelerator``; a full name wins over a shortened one, so both can
be installed.

Source: python-openstackclient, "Plugins" in its contributor documentation.
"""

import argparse
import typing

from nova_accel.osc import cloud

API_NAME = 'nova_accel'
API_VERSION_OPTION = 'os_nova_accel_api_version'
API_VERSIONS = {'1': 'nova_accel.osc.cloud.Cloud'}
DEFAULT_API_VERSION = '1'


def make_client(instance: typing.Any) -> cloud.Cloud:
    """Return what the commands read the cloud with.

    :param instance: openstackclient's ClientManager
    """
    return cloud.Cloud(instance.sdk_connection)


def build_option_parser(parser: argparse.ArgumentParser,
                        ) -> argparse.ArgumentParser:
    """Add no global option; python-openstackclient calls this."""
    return parser
