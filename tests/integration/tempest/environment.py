# SPDX-License-Identifier: Apache-2.0
"""A virtual environment of Tempest, Cyborg's plugin and nova_accel's."""

import configparser
import pathlib
import sys

from tests.integration import packages
from tests.integration import place
from tests.integration import steps
from tests.integration.cloud import resources
from tests.integration.tempest import guest

VENV = place.CACHE / 'tempest' / 'venv'
WORKSPACE = place.STATE / 'tempest'
LOG = place.LOG / 'tempest.log'

_PIP = ('tempest==47.0.0', 'cyborg-tempest-plugin==2.8.0')
_PLUGIN = pathlib.Path(__file__).parent / 'plugin'
#: guest.py needs readelf of binutils. Nova makes config drives with
#: genisoimage.
_APT = ('binutils', 'genisoimage')


def install(shown: steps.Steps) -> None:
    """Install Tempest and build the guests' image."""
    with shown.step('tempest'):
        packages.apt(*_APT)
        if not (VENV / 'bin' / 'python').exists():
            steps.run(sys.executable, '-m', 'venv', VENV)
        packages.uv(VENV / 'bin' / 'python', *_PIP)
        # The plugin may have changed since the last run.
        packages.uv(VENV / 'bin' / 'python', '--reinstall-package',
                    'nova-accel-tempest', '--no-deps', str(_PLUGIN))
        guest.build()


def configure(image: str, flavor: str, profile: str,
              device: tuple[str, str]) -> None:
    """Make the workspace and write its tempest.conf.

    :param image: the image's id
    :param flavor: the flavor's id
    :param profile: the profile of flavors with a device
    :param device: vendor and product id in hexadecimal digits
    """
    if not WORKSPACE.exists():
        steps.run(VENV / 'bin' / 'tempest', 'init', WORKSPACE, log=LOG)
    conf = configparser.ConfigParser(interpolation=None)
    conf.read_dict({
        'DEFAULT': {'log_file': str(LOG), 'debug': 'false'},
        'oslo_concurrency': {'lock_path': f'{WORKSPACE}/lock'},
        'auth': {
            'use_dynamic_credentials': 'true',
            'create_isolated_networks': 'false',
            **{f'admin_{key}': resources.CREDENTIALS[value]
               for key, value in (('username', 'username'),
                                  ('password', 'password'),
                                  ('project_name', 'project_name'),
                                  ('domain_name', 'user_domain_name'))}},
        'identity': {'uri_v3': resources.CREDENTIALS['auth_url'],
                     'auth_version': 'v3', 'region': 'RegionOne'},
        'identity-feature-enabled': {'api_v2': 'false'},
        'service_available': {
            'cinder': 'false', 'swift': 'false', 'horizon': 'false',
            'neutron': 'true', 'nova': 'true', 'glance': 'true',
            # Cyborg's tests require it. plugin/ replaces its API.
            'cyborg': 'true'},
        'compute': {'image_ref': image, 'image_ref_alt': image,
                    'flavor_ref': flavor, 'flavor_ref_alt': flavor,
                    'fixed_network_name': resources.NETWORK,
                    'build_timeout': '600', 'build_interval': '1'},
        'compute-feature-enabled': {'shelve': 'true', 'snapshot': 'true'},
        'network': {'project_networks_reachable': 'true'},
        'validation': {
            'run_validation': 'true', 'connect_method': 'fixed',
            'auth_method': 'keypair', 'image_ssh_user': 'root',
            'network_for_ssh': resources.NETWORK,
            'connect_timeout': '60', 'ssh_timeout': '300'},
        'cyborg_pci': {'device_profile_name': profile,
                       'vendor_id': device[0], 'product_id': device[1],
                       'expected_managed': 'true'}})
    with (WORKSPACE / 'etc' / 'tempest.conf').open('w') as file:
        conf.write(file)
