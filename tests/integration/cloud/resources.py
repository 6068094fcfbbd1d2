# SPDX-License-Identifier: Apache-2.0
"""Resources of the cloud: users, endpoints, image, flavors and network."""

import ipaddress

import openstack

from tests.integration.cloud import configuration
from tests.integration.cloud import guest

#: Type and URL of each service.
ENDPOINTS = {
    'placement': ('placement', 'http://127.0.0.1:8778'),
    'glance': ('image', 'http://127.0.0.1:9292'),
    'neutron': ('network', 'http://127.0.0.1:9696'),
    'nova': ('compute', 'http://127.0.0.1:8774/v2.1'),
}
IMAGE = 'guest'
NETWORK = 'physical'
#: The namespaces' address in the network, with the prefix length.
ADDRESS = '10.77.0.1/24'
#: MiB of memory, and vCPUs.
FLAVORS = {'tiny': (256, 1), 'small': (512, 2)}

CREDENTIALS = {
    'auth_url': configuration.KEYSTONE, 'username': 'admin',
    'password': configuration.PASSWORD, 'project_name': 'admin',
    'user_domain_name': 'Default', 'project_domain_name': 'Default'}
#: The credentials as environment variables of the clients.
ENVIRONMENT = {
    'OS_IDENTITY_API_VERSION': '3', 'OS_REGION_NAME': 'RegionOne',
    'OS_COMPUTE_API_VERSION': '2.latest', 'OS_PLACEMENT_API_VERSION': '1.39',
    **{f'OS_{key.upper()}': value for key, value in CREDENTIALS.items()}}


def connect() -> openstack.connection.Connection:
    """Return a connection as administrator, without any request yet."""
    return openstack.connect(
        region_name='RegionOne', load_yaml_config=False,
        load_envvars=False, compute_default_microversion='2.90',
        placement_default_microversion='1.39',
        auth=CREDENTIALS)


def identity(connection, endpoints=ENDPOINTS) -> None:
    """Create users, services and endpoints in Keystone."""
    keystone = connection.identity
    project = keystone.find_project('service') or keystone.create_project(
        name='service', domain_id='default')
    roles = [keystone.find_role(name) for name in ('admin', 'service')]
    for name, (kind, url) in endpoints.items():
        if keystone.find_user(name):
            continue
        user = keystone.create_user(
            name=name, password=configuration.PASSWORD, domain_id='default')
        for role in roles:
            keystone.assign_project_role_to_user(project, user, role)
        service = keystone.create_service(name=name, type=kind)
        for interface in ('public', 'internal', 'admin'):
            keystone.create_endpoint(
                service_id=service.id, interface=interface, url=url,
                region_id='RegionOne')


def image(connection, name=IMAGE, kernel=guest.KERNEL, ramdisk=guest.RAMDISK,
          **properties):
    """Return an image of an empty disk with a separate kernel and ramdisk."""
    found = connection.image.find_image(name)
    if found:
        return found
    parts = {part: connection.image.create_image(
        f'{name}-{part}', filename=str(path), disk_format=kind,
        container_format=kind, visibility='public')
        for part, path, kind in (('kernel', kernel, 'aki'),
                                 ('ramdisk', ramdisk, 'ari'))}
    return connection.image.create_image(
        name, data=bytes(1 << 20), disk_format='raw', container_format='bare',
        visibility='public', kernel_id=parts['kernel'].id,
        ramdisk_id=parts['ramdisk'].id,
        **{'os_command_line': 'console=ttyS0 quiet panic=-1', **properties})


def flavor(connection, name, ram=256, vcpus=1, extra_specs=None, disk=1):
    """Create a flavor, and delete an older one of the same name."""
    found = connection.compute.find_flavor(name)
    if found:
        connection.compute.delete_flavor(found)
    made = connection.compute.create_flavor(name=name, ram=ram, vcpus=vcpus,
                                            disk=disk)
    if extra_specs:
        connection.compute.create_flavor_extra_specs(made, extra_specs)
    return made


def network(connection):
    found = connection.network.find_network(NETWORK)
    if found:
        return found
    made = connection.network.create_network(
        name=NETWORK, provider_network_type='flat', shared=True,
        provider_physical_network='physical')
    connection.network.create_subnet(
        network_id=made.id, name=NETWORK, ip_version=4,
        cidr=str(ipaddress.ip_interface(ADDRESS).network), enable_dhcp=False,
        gateway_ip=None, allocation_pools=[
            {'start': '10.77.0.10', 'end': '10.77.0.250'}])
    return made
