# SPDX-License-Identifier: Apache-2.0
"""The installed package, which tox installs from the wheel."""

from importlib import metadata
import pathlib

_ROOT = pathlib.Path(__file__).parents[2]


def test_wheel_has_every_module():
    modules = {str(path.relative_to(_ROOT)).replace(
        'nova_accel/shim/', 'nova/virt/accel/')
        for path in (_ROOT / 'nova_accel').rglob('*.py')}
    # A build leaves another dist-info in the source directory.
    [installed] = [found for found in metadata.distributions(
        name='nova-accel') if found.read_text('RECORD')]
    assert {str(path) for path in installed.files
            if path.suffix == '.py'} == modules
