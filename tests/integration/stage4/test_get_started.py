# SPDX-License-Identifier: Apache-2.0
"""The page "Get started", followed from its first to its last block.

``compute1`` is a nested machine with the devices of the page. nova-accel is
installed there, but not configured. The test writes the blocks of nova.conf
and the profile, runs the commands, and compares their output with the page. It
replaces only names and sizes that differ in this cloud. The guest runs the
command of the page.
"""

from collections.abc import Iterator
import shlex
import sys

import pytest

from tests.integration import steps
from tests.integration.cloud import install_guide
from tests.integration.cloud import resources
from tests.integration.machine import built
from tests.integration.machine import clock
from tests.integration.machine import eight_gpus
from tests.integration.machine import guest
from tests.integration.machine import machine as machines
from tests.integration.machine import node
from tests.integration.machine import root

_PAGE = 'get-started'
_REPLACED = {
    'compute1': 'machine-1',
    # The machine has a second NIC, for migrations.
    'PCI functions: 37, NUMA nodes: 2, IOMMU groups: 35':
        'PCI functions: 38, NUMA nodes: 2, IOMMU groups: 36',
    # The machine has no Neutron agent.
    '--network private': '--nic none',
    '--vcpus 8 --ram 65536 --disk 40': '--vcpus 1 --ram 128 --disk 0',
    # libvirt 9.0 refuses the attribute "secure" of a loader, which Nova writes
    # beside firmware="efi".
    ' --property hw_firmware_type=uefi': '',
    # The name in the pci.ids of Debian 12.
    'GH100 [H100': 'GH100[H100'}
_IMAGE, _FLAVOR, _SERVER = 'debian', 'gpu.pair', 'trainer'
_PROMPT = '$ lspci '


@pytest.fixture
def compute1(cloud) -> Iterator[machines.Machine]:
    """Run the host of the page."""
    with node.nodes(cloud, steps.Steps(sys.stderr), 1,
                    equipment=eight_gpus.arguments) as [machine]:
        yield machine


@pytest.fixture
def newcomer(cloud, compute1):
    """Make a cloud with the image of the page, without nova_accel."""
    [listing] = [block for block in install_guide.blocks(_PAGE)
                 if block.startswith(_PROMPT)]
    parts = built.load()
    command = listing.partition('\n')[0].removeprefix('$ ')
    resources.image(cloud.connection, _IMAGE, parts.guest_linux,
                    parts.guest_with_lspci,
                    os_command_line=f'{guest.RUN} {command}')
    for profile in cloud.profiles.glob('*.yaml'):
        profile.unlink()
    with install_guide.unconfigured():
        yield Newcomer(cloud, compute1)
    _delete_all(cloud.connection)
    cloud.configure('nova', '', _PAGE)
    cloud.restart('nova-api', 'nova-scheduler')


def _delete_all(connection):
    compute, images = connection.compute, connection.image
    if server := compute.find_server(_SERVER):
        compute.delete_server(server)
        compute.wait_for_delete(server, wait=steps.LIMIT)
    if flavor := compute.find_flavor(_FLAVOR):
        compute.delete_flavor(flavor)
    images.delete_image(images.find_image(_IMAGE))


class Newcomer:
    """A reader who follows the page block by block."""

    def __init__(self, cloud, compute1):
        self._cloud = cloud
        self._compute1 = compute1
        self._conf = ''

    def follow(self, block: str) -> None:
        """Write the file or run the commands of a block.

        :raises Failure: if a command fails or its output differs
        """
        for written, ours in _REPLACED.items():
            block = block.replace(written, ours)
        first, _, expected = block.partition('\n')
        if first == '[filter_scheduler]':
            self._cloud.configure('nova', f'{block}\n', _PAGE)
        elif first.startswith('['):
            self._conf += f'{block}\n'
            self._compute1.configure(self._conf)
        elif first.startswith('name: '):
            self._cloud.profiles.mkdir(exist_ok=True)
            (self._cloud.profiles / 'gpu.yaml').write_text(block)
        elif first.startswith('Offered: '):
            self._compare('the log', self._log, f'...\n...{block}')
        elif first.startswith(_PROMPT):
            self._compare(first, self._console, block)
        elif first.startswith('openstack '):
            for line in block.splitlines():
                self._cloud.run(*shlex.split(line))
        else:
            run = self._run_on_compute1 if first.startswith(
                '# nova-accel host ') else self._run
            self._compare(first, lambda: run(first[2:]), expected)

    def restart(self) -> None:
        self._run_on_compute1('nova-accel-status upgrade check')
        self._cloud.restart('nova-api', 'nova-scheduler')
        self._compute1.restart('nova-compute')

    def _log(self):
        return self._compute1.log('nova-compute').read_text()

    def _console(self):
        return self._run(f'openstack console log show {_SERVER}')

    def _run(self, command):
        return self._cloud.run('sh', '-c', f'{command} 2>&1')

    def _run_on_compute1(self, command):
        return self._compute1.run(f'{root.NOVA}/bin/{command} 2>&1')

    def _compare(self, what, say, expected):
        def said():
            text = say()
            if not install_guide.matches(expected, text):
                raise steps.Failure(f'{what} says:\n{text}')
            return True
        # nova-compute reports its devices, and the guest runs its command, a
        # little later.
        steps.wait(what, said, pause=2, clock=clock.Clock())


def test_page_from_its_first_to_its_last_block(newcomer):
    for block in install_guide.blocks(_PAGE):
        newcomer.follow(block)
        if 'upgrade check' in block:
            newcomer.restart()
