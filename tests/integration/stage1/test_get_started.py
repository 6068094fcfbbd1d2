# SPDX-License-Identifier: Apache-2.0
"""The page "Get started", walked from its first to its last block.

The compute node is the recorded machine of the page, and has been restarted
without nova_accel in its configuration. Blocks of nova.conf and the profile
are written, commands are run as they are written, and what the page says that
they say is compared. Only what this cloud has not is replaced: names, and the
size of a flavor. ``lspci`` is left out: no guest of this cloud has a device
(stage2/test_devices.py looks into guests that do).
"""

import shlex

import pytest

from tests.integration import steps
from tests.integration.cloud import install_guide
from tests.integration.cloud import resources

_PAGE = 'get-started'
_REPLACED = {
    'compute1': 'cloud',
    '--network private': f'--network {resources.NETWORK}',
    '--vcpus 8 --ram 65536 --disk 40': '--vcpus 1 --ram 256 --disk 1',
    # libvirt 9.0 refuses the attribute "secure" of a loader, which Nova writes
    # beside firmware="efi".
    ' --property hw_firmware_type=uefi': ''}
_NOVA = ('nova-api', 'nova-conductor', 'nova-scheduler', 'nova-compute')


@pytest.fixture
def newcomer(cloud, outer, accelerators):
    """A cloud with the image of the page and nothing of nova_accel."""
    resources.image(cloud.connection, 'debian')
    for profile in cloud.profiles.glob('*.yaml'):
        profile.unlink()
    with outer.before_installation():
        yield Newcomer(cloud)
        accelerators.delete_all()
        if flavor := cloud.connection.compute.find_flavor('gpu.pair'):
            cloud.connection.compute.delete_flavor(flavor)
        cloud.connection.image.delete_image(
            cloud.connection.image.find_image('debian'))


class Newcomer:
    """Somebody who does what the page says, block by block."""

    def __init__(self, cloud):
        self._cloud = cloud
        self._conf = ''
        self._begin = 0

    def follow(self, block: str) -> None:
        """:raises Failure: if something is not as the page says"""
        for written, ours in _REPLACED.items():
            block = block.replace(written, ours)
        first, _, expected = block.partition('\n')
        if first.startswith('['):
            self._conf += f'{block}\n'
            self._cloud.configure('nova', self._conf, 'get-started')
        elif first.startswith('name: '):
            self._cloud.profiles.mkdir(exist_ok=True)
            (self._cloud.profiles / 'gpu.yaml').write_text(block)
        elif first.startswith('Offered: '):
            said = self._log()
            assert block in said, said
        elif first.startswith('openstack '):
            for line in block.splitlines():
                self._cloud.run(*shlex.split(line))
        elif 'lspci' not in first:
            self._compare(first[2:], expected)

    def restart(self) -> None:
        self._begin = len(self._log())
        self._cloud.restart(*_NOVA)

    def _log(self):
        return self._cloud.log('nova-compute').read_text()[self._begin:]

    def _compare(self, command, expected):
        def said():
            text = self._cloud.run('sh', '-c', f'{command} 2>&1')
            if not install_guide.matches(expected, text):
                raise steps.Failure(f'{command} says:\n{text}')
            return True
        # What nova-compute has not reported yet is there a little later.
        steps.wait(command, said, 60)


def test_page_from_its_first_to_its_last_block(newcomer):
    for block in install_guide.blocks(_PAGE):
        newcomer.follow(block)
        if 'upgrade check' in block:
            newcomer.restart()
