# SPDX-License-Identifier: Apache-2.0
"""The document that tells a guest's programs of its devices.

It is a ``DeviceMetadata`` of Kubernetes (KEP-5304, device attributes of
dynamic resource allocation), with a request for each group. The NUMA cells and
NCCL's topology file are further keys, which programs for that format ignore.

Sources: k8s.io/dynamic-resource-allocation/api/metadata/v1alpha1; for
``pciBusID``, k8s.io/dynamic-resource-allocation/deviceattribute.
"""

import collections
import collections.abc
import dataclasses
import itertools
import re

from nova_accel.core import naming
from nova_accel.core.guest import device_role

API_VERSION = 'metadata.resource.k8s.io/v1alpha1'
KIND = 'DeviceMetadata'
#: A domain name, as for a driver of Kubernetes.
DRIVER = 'nova-accel.openstack.org'

#: A DNS label has at most 63 characters. Names of devices, and of groups that
#: are alike, have a number more.
_MAX_NAME = 50


@dataclasses.dataclass(frozen=True)
class Cell:
    """A NUMA cell of a guest.

    :param cpus: a list as libvirt writes it, ``0-3,8``
    """

    id: int
    cpus: str


def build(server: str, roles: collections.abc.Iterable[device_role.DeviceRole],
          cells: collections.abc.Iterable[Cell] = (), nccl: str = '',
          ) -> dict[str, object]:
    """Return the document, to be written as JSON.

    :param server: uuid of the server
    :param nccl: the topology file, '' for none
    """
    requests = collections.defaultdict(list)
    for role in roles:
        requests[role.group].append(role)
    names = _names(requests)
    document: dict[str, object] = {
        'apiVersion': API_VERSION, 'kind': KIND,
        'metadata': {'name': server, 'uid': server, 'generation': 1},
        'requests': [{'name': names[group], 'devices': [
            _device(role, f'{names[group]}-{number}', server)
            for number, role in enumerate(members)]}
            for group, members in requests.items()]}
    if cells := [*cells]:
        document['numaCells'] = [{'id': cell.id, 'cpus': cell.cpus}
                                 for cell in cells]
    if nccl:
        document['ncclTopology'] = nccl
    return document


def _names(groups: collections.abc.Iterable[str]) -> dict[str, str]:
    """Return the name of each group's request, which is a DNS label."""
    names: dict[str, str] = {}
    for group in groups:
        name = re.sub('[^a-z0-9]+', '-', group.lower())[:_MAX_NAME].strip(
            '-') or naming.NO_GROUP
        names[group] = next(one for one in itertools.chain([name], (
            f'{name}-{number}' for number in itertools.count(2)))
            if one not in names.values())
    return names


def _device(role: device_role.DeviceRole, name: str, server: str,
            ) -> dict[str, object]:
    return {'name': name, 'driver': DRIVER, 'pool': server, 'attributes': {
        key: {'int' if isinstance(value, int) else 'string': value}
        for key, value in _attributes(role) if value not in (None, '')}}


def _attributes(role: device_role.DeviceRole) -> collections.abc.Iterator[
        tuple[str, str | int | None]]:
    yield 'group', role.group
    yield 'resourceClass', role.resource_class
    if role.position:
        yield 'resource.kubernetes.io/pciBusID', str(role.position.address)
        yield 'path', role.position.path
        yield 'numaCell', role.position.cell
    # The document does not change while a guest runs, and these facts do.
    if not role.moves:
        yield 'provider', role.provider
        yield 'hostNumaNode', role.numa_node
        yield 'hostPcieSwitch', role.switch
        yield 'linkDomain', role.link_domain
