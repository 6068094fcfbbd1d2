# SPDX-License-Identifier: Apache-2.0
"""The sdist and the wheel that ``python -m build`` makes of the files in git.

They are built in another directory: building leaves files beside the sources.
"""

import configparser
from importlib import metadata
import pathlib
import shutil
import subprocess
import sys
import tarfile
import zipfile

import docutils.core
import pytest

_ROOT = pathlib.Path(__file__).parents[2]
_TAG = '75.3.1'
_ETC = 'etc/nova_accel/'
_DATA = f'nova_accel-{_TAG}.data/data/share/nova-accel/'
_DIST_INFO = f'nova_accel-{_TAG}.dist-info/'


def _git(*arguments, cwd):
    return subprocess.run(
        ['git', '-c', 'user.name=test', '-c', 'user.email=test@localhost',
         *arguments], cwd=cwd, check=True, capture_output=True,
        text=True).stdout


@pytest.fixture(scope='module')
def files():
    """The files that git tracks, with their current content."""
    if not (_ROOT / '.git').exists():
        pytest.skip('this is not a clone: nothing says which files belong')
    return {name for name in _git('ls-files', '-z', cwd=_ROOT).split('\0')
            if (_ROOT / name).is_file()}


@pytest.fixture(scope='module')
def built(files, tmp_path_factory):
    """The directory of an sdist, and of a wheel that is built from it."""
    clone, out = (tmp_path_factory.mktemp(name) for name in ('clone', 'out'))
    for name in files:
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(_ROOT / name, clone / name)
    _git('init', '-q', cwd=clone)
    _git('add', '--all', '--force', cwd=clone)
    _git('commit', '-q', '-m', 'as it is now', cwd=clone)
    _git('tag', _TAG, cwd=clone)
    done = subprocess.run(
        [sys.executable, '-m', 'build', '--no-isolation', '--outdir', out],
        cwd=clone, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope='module')
def wheel(built):
    with zipfile.ZipFile(
            built / f'nova_accel-{_TAG}-py3-none-any.whl') as archive:
        yield archive


def test_sdist_has_every_file_of_git_and_no_other(built, files):
    top = f'nova_accel-{_TAG}/'
    with tarfile.open(built / f'nova_accel-{_TAG}.tar.gz') as archive:
        names = {member.name.removeprefix(top) for member in archive
                 if member.isfile()}
    generated = {name for name in names if name == 'PKG-INFO'
                 or name.startswith('nova_accel.egg-info/')}
    assert names - generated == files


def test_wheel_has_every_module_and_no_other_file(wheel, files):
    assert {name for name in wheel.namelist()
            if not name.startswith((_DATA, _DIST_INFO))} == {
        name.replace('nova_accel/shim/', 'nova/virt/accel/')
        for name in files if name.startswith('nova_accel/')}


def test_wheel_has_every_sample_and_dashboard(wheel, files):
    assert {name.removeprefix(_DATA) for name in wheel.namelist()
            if name.startswith(_DATA)} == {
        name.removeprefix(_ETC).removeprefix('contrib/') for name in files
        if name.startswith((_ETC, 'contrib/grafana/'))} - {
            'config-generator.conf'}


@pytest.fixture(scope='module')
def described(wheel):
    return metadata.PathDistribution(
        zipfile.Path(wheel, _DIST_INFO)).metadata


def _programs():
    config = configparser.ConfigParser()
    config.read(_ROOT / 'setup.cfg')
    return [line.split(' = ') for line in config[
        'options.entry_points']['console_scripts'].strip().splitlines()]


@pytest.mark.parametrize('name, function', _programs())
def test_program_has_its_name_if_python_runs_its_module(name, function):
    done = subprocess.run(
        [sys.executable, '-m', function.partition(':')[0], '--help'],
        cwd=_ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith(f'usage: {name} '), done.stderr


def test_version_is_the_tag_in_git(described):
    assert described['Version'] == _TAG


def test_long_description_renders_without_a_warning(described):
    assert described['Description-Content-Type'] == 'text/x-rst'
    assert docutils.core.publish_string(
        described.get_payload(), writer='html5',
        settings_overrides={'halt_level': 2, 'report_level': 2})
