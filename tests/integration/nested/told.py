# SPDX-License-Identifier: Apache-2.0
"""What a guest is told of its devices, by the metadata service.

The requests are those of Neutron's metadata proxy, which names the server.
"""

import hashlib
import hmac
import json
from urllib import request

#: As in cloud/conf/nova/nova.conf.
_SECRET = 'metadata'
_SERVICE = 'nova-metadata'
_URL = 'http://127.0.0.1:8776/openstack/latest/meta_data.json'


def metadata(cloud, server) -> dict[str, dict[str, str]]:
    """Return the tags of each device of ours, by its address in the guest.

    :param server: openstack.compute.v2.server.Server
    """
    if not cloud.processes.alive(_SERVICE):
        cloud.start(_SERVICE)
    asked = request.Request(_URL, headers={
        'X-Instance-ID': server.id, 'X-Tenant-ID': server.project_id,
        'X-Forwarded-For': '192.0.2.1',
        'X-Instance-ID-Signature': hmac.new(
            _SECRET.encode(), server.id.encode(), hashlib.sha256
            ).hexdigest()})
    with request.urlopen(asked, timeout=60) as answer:
        return _tags(json.load(answer))


def config_drive(host, server: str) -> dict[str, dict[str, str]]:
    """Return what the config drive of a server has, as :func:`metadata`.

    :param host: tests.integration.nested.inside.Inside
    :param server: its uuid
    """
    return _tags(json.loads(host.config_drive(server)))


def _tags(metadata) -> dict[str, dict[str, str]]:
    devices = metadata.get('devices', ())
    return {device['address']: dict(
        tag.removeprefix('accel.').partition('=')[::2]
        for tag in device['tags'] if tag.startswith('accel.'))
        for device in devices if 'accel' in device.get('tags', ())}


def document(guest) -> dict[str, dict[str, object]]:
    """Return the attributes of each device in a guest's document.

    :param guest: tests.integration.nested.guest.Guest
    :returns: by the device's address in the guest
    """
    return {found['resource.kubernetes.io/pciBusID']: found
            for asked in guest.document['requests']
            for device in asked['devices']
            for found in [{key: value for key, typed
                           in device['attributes'].items()
                           for value in typed.values()}]}
