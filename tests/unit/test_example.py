# SPDX-License-Identifier: Apache-2.0
"""A kind of another package, installed beside ours."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

_EXAMPLE = pathlib.Path(__file__).parent.parent / 'example'
_ENTRY = {'kind': 'example', 'vendor_id': '1234'}


@pytest.fixture(scope='module')
def installed(tmp_path_factory):
    """Install the package. Return the environment to run processes in."""
    # pip writes to the source directory when it builds, so copy it.
    source = shutil.copytree(_EXAMPLE, tmp_path_factory.mktemp('source'),
                             dirs_exist_ok=True)
    site = tmp_path_factory.mktemp('site')
    subprocess.run(
        [sys.executable, '-m', 'pip', 'install', '-q', '--no-deps',
         '--no-build-isolation', '--disable-pip-version-check', '--target',
         str(site), str(source)], check=True)
    return {**os.environ, 'PYTHONWARNINGS': 'ignore', 'PYTHONPATH':
            os.pathsep.join([str(site), str(pathlib.Path.cwd())])}


def _run(installed, *arguments):
    return subprocess.run([sys.executable, *arguments], env=installed,
                          capture_output=True, text=True)


def test_example_passes_the_tests_of_the_kind_contract(installed):
    done = _run(installed, '-m', 'pytest', '-q', '-p', 'no:cacheprovider',
                str(_EXAMPLE))
    assert done.returncode == 0, done.stdout
    assert ' passed' in done.stdout


def test_command_shows_devices_of_the_example(installed):
    done = _run(installed, '-m', 'nova_accel.cmd.main', 'host', 'show',
                '-f', 'json', '--sysfs-root', str(_EXAMPLE / 'machine.json'),
                '--device-spec', json.dumps(_ENTRY))
    shown = json.loads(done.stdout)
    assert [region['resource_class'] for device in shown['devices']
            for region in device['regions']] == ['CUSTOM_POWER_CARD'] * 2


def test_entry_without_its_kind_names_the_missing_kind():
    done = _run(None, '-m', 'nova_accel.cmd.main', 'host', 'show',
                '-f', 'json', '--sysfs-root', str(_EXAMPLE / 'machine.json'),
                '--device-spec', json.dumps(_ENTRY))
    assert "kind 'example' is not installed; known kinds: declared" in (
        done.stdout + done.stderr)
