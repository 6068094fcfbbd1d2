# SPDX-License-Identifier: Apache-2.0
"""tempest, the peer's plugin and ours, in an environment of their own."""

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
#: What Nova makes configuration drives with.
_APT = ('binutils', 'genisoimage')


def install(shown: steps.Steps) -> None:
    """Install it, and make the image of its guests."""
    with shown.step('tempest'):
        packages.apt(*_APT)
        if not (VENV / 'bin' / 'python').exists():
            steps.run(sys.executable, '-m', 'venv', VENV)
        packages.uv(VENV / 'bin' / 'python', *_PIP)
        # As it is now.
        packages.uv(VENV / 'bin' / 'python', '--reinstall-package',
                    'nova-accel-tempest', '--no-deps', str(_PLUGIN))
        guest.build()


def configure(image: str, flavor: str, profile: str,
              device: tuple[str, str]) -> None:
    """Make the workspace, and say in tempest.conf where all is.

    :param image: its id, as the flavor's
    :param profile: the profile that a flavor with a device has
    :param device: vendor and product, in hexadecimal digits
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
            # The peer's tests ask for it; what they ask of it, see plugin/.
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
