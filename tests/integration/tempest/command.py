# SPDX-License-Identifier: Apache-2.0
"""Run Cyborg's Tempest tests on nova_accel: ``... tempest [REGEX]``.

Tempest runs the lifecycle tests of cyborg-tempest-plugin for servers with a
PCI device, in the running cloud.
"""

import argparse
from collections.abc import Iterator
import contextlib
import dataclasses
import pathlib
import subprocess
import sys

from tests.integration import place
from tests.integration import steps
from tests.integration.cloud import cloud as clouds
from tests.integration.cloud import resources
from tests.integration.cloud import services
from tests.integration.tempest import environment
from tests.integration.tempest import guest
from tests.integration.tempest import totals

#: Vendor and product id of the device that lookalike.py gives to guests.
DEVICE = ('1234', '11e8')

_PROFILE = 'a-device'
_RECORDED = place.ROOT / 'tests' / 'data' / 'hosts' / 'l1-kinds.json'
_CONF = f"""\
[DEFAULT]
force_config_drive = true
[nova_accel]
sysfs_root = {_RECORDED}
device_spec = {{"vendor_id": "{DEVICE[0]}", "product_id": "{DEVICE[1]}", \
"address": "0000:00:05.0", "resource_class": "CUSTOM_A_DEVICE", \
"reset": "if_possible"}}
"""
_YAML = f"""\
name: {_PROFILE}
groups:
- resources: {{CUSTOM_A_DEVICE: 1}}
"""
_LOOKALIKE = pathlib.Path(__file__).parent / 'lookalike.py'


def main() -> int:
    arguments = _arguments()
    shown = steps.Steps()
    cloud = clouds.Cloud()
    with _devices(cloud):
        with shown.step('image, flavor and profile'):
            _prepare(cloud)
        code, said = _tempest(shown, arguments.regex)
    reason = totals.lacking(said)
    if code or not reason:
        return code
    shown.say(f'FAILED: {reason}')
    return 1


def _arguments():
    parser = argparse.ArgumentParser('tempest', description=__doc__)
    parser.add_argument('regex', nargs='?', default='^nova_accel_tempest',
                        help='which tests (default: %(default)s)')
    return parser.parse_args()


@contextlib.contextmanager
def _devices(cloud) -> Iterator[None]:
    """Run nova-compute with look-alike devices during the context."""
    before = services.SERVICES['nova-compute']
    profile = cloud.profiles / f'{_PROFILE}.yaml'
    services.SERVICES['nova-compute'] = dataclasses.replace(
        before, command=(
            f'{place.BIN}/python', '-P', str(_LOOKALIKE), 'nova-compute'))
    try:
        cloud.configure('nova', _CONF, 'tempest')
        place.make(cloud.profiles)
        profile.write_text(_YAML)
        cloud.restart('nova-compute')
        yield
    finally:
        services.SERVICES['nova-compute'] = before
        profile.unlink(missing_ok=True)
        cloud.configure('nova', '', 'tempest')
        cloud.restart('nova-compute')


def _prepare(cloud):
    steps.wait('our resource providers', lambda: [
        provider for provider in cloud.connection.placement
        .resource_providers() if '_accel_' in provider.name], 120)
    image = resources.image(cloud.connection, 'tempest',
                            ramdisk=guest.RAMDISK, **guest.PROPERTIES)
    flavor = resources.flavor(cloud.connection, 'tempest', 384)
    environment.configure(image.id, flavor.id, _PROFILE, DEVICE)


def _tempest(shown, regex) -> tuple[int, str]:
    """Run Tempest and show its output.

    :returns: the exit code and the output
    """
    run = [str(environment.VENV / 'bin' / 'tempest'), 'run', '--serial',
           '--regex', regex]
    shown.say(f'$ {" ".join(run)}')
    said = []
    with subprocess.Popen(
            run, cwd=environment.WORKSPACE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors='replace') as process:
        for line in process.stdout:
            said.append(line)
            shown.say(line.rstrip('\n'))
    return process.returncode, ''.join(said)


if __name__ == '__main__':
    sys.exit(main())
