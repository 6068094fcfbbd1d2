# SPDX-License-Identifier: Apache-2.0
"""Run commands of python-openstackclient against the functional cloud."""

import importlib.metadata
import io
import json
import types

from keystoneauth1 import session
from keystoneauth1 import token_endpoint
from openstack import connection
from openstack.config import cloud_region

from nova_accel.osc import plugin

PROJECT = '6f70656e737461636b20342065766572'


class Openstack:
    """The openstack client of one user.

    :param compute: URL of nova-api
    :param placement: URL of Placement
    :param user: name of the user; both services accept ``admin`` as an
        administrator
    """

    def __init__(self, compute, placement, user='admin', project=PROJECT):
        # Nova's test harness reads the user from these headers. Placement's
        # reads it from the token.
        authenticated = session.Session(
            token_endpoint.Token(compute, f'{user}:{project}'),
            additional_headers={'X-Auth-User': user,
                                'X-Auth-Project-Id': project,
                                'X-Roles': user})
        self.cloud = types.SimpleNamespace(
            sdk_connection=connection.Connection(
                config=cloud_region.from_session(
                    authenticated, compute_endpoint_override=compute,
                    placement_endpoint_override=placement,
                    # There is no Keystone; nova-api answers 404.
                    identity_api_version='3',
                    identity_endpoint_override=compute)))
        self.cloud.nova_accel = plugin.make_client(self.cloud)

    def run(self, command, *arguments, output='json'):
        """Run a command as cliff does, and return its output.

        :returns: parsed JSON, or the text if ``output`` is another format
        """
        [entry] = importlib.metadata.entry_points(
            group='openstack.nova_accel.v1', name=command.replace(' ', '_'))
        stdout = io.StringIO()
        shown = entry.load()(types.SimpleNamespace(
            client_manager=self.cloud, stdout=stdout), None)
        parser = shown.get_parser(command)
        shown.run(parser.parse_args([
            *arguments, *(['-f', output] if '--format' in
                          parser.format_help() else [])]))
        text = stdout.getvalue()
        return json.loads(text) if output == 'json' and text else text
