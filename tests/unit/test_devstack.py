# SPDX-License-Identifier: Apache-2.0
"""The DevStack plugin, with DevStack's functions replaced by short ones."""

import pathlib
import subprocess
import sys

import pytest

from tests.integration.cloud import install_guide
from tests.unit import ini

_ROOT = pathlib.Path(__file__).parents[2]
_PLUGIN = _ROOT / 'devstack'

#: Short versions of DevStack's functions.
_FUNCTIONS = """
set -euo pipefail
for function in ini_has_option iniadd iniget iniset; do
    eval "function $function { '%(python)s' -S '%(ini)s' \\
          $function \\"\\$@\\"; }"
done
function define_plugin { echo "plugin $1"; }
function echo_summary { echo "$@"; }
function is_service_enabled { [[ " $SERVICES " == *" $1 "* ]]; }
function setup_install { echo "setup_install $*"; }
function sudo { "$@"; }
NOVA_FILTERS=ComputeFilter
STACK_USER=$(id -un)
source '%(plugin)s/settings'
"""


def script(mode):
    """Return a script that sources the plugin as DevStack does."""
    functions = _FUNCTIONS % {
        'python': sys.executable, 'ini': ini.__file__, 'plugin': _PLUGIN}
    return f"{functions}\nsource '{_PLUGIN}/plugin.sh' {mode}"


class DevStack:
    """A host with nova.conf, a clone of Nova, and site-packages."""

    def __init__(self, path):
        self.nova = path / 'nova'
        self.site = path / 'site-packages'
        self.conf = path / 'nova.conf'
        self.profiles = path / 'device_profiles.d'
        (self.nova / 'nova' / 'virt').mkdir(parents=True)
        (self.site / 'nova_accel').mkdir(parents=True)
        (self.site / 'nova_accel' / '__init__.py').touch()
        (self.site / 'nova' / 'virt' / 'accel').mkdir(parents=True)
        self.conf.write_text('')

    def run(self, mode, services='n-api n-cpu n-sch', **settings):
        done = subprocess.run(
            ['bash', '-c', script(mode)],
            cwd=_ROOT, capture_output=True, text=True, timeout=60,
            env={'PATH': '/usr/bin:/bin', 'PYTHON': sys.executable,
                 'PYTHONPATH': str(self.site), 'DEST': '/opt/stack',
                 'NOVA_ACCEL_DIR': str(_ROOT), 'NOVA_DIR': str(self.nova),
                 'NOVA_CONF': str(self.conf), 'SERVICES': services,
                 'NOVA_ACCEL_PROFILE_DIR': str(self.profiles), **settings})
        assert done.returncode == 0, done.stderr
        return done.stdout

    def options(self):
        return sorted(ini.options(self.conf.read_text()))


@pytest.fixture
def devstack(tmp_path):
    return DevStack(tmp_path)


def _of_the_guide(option):
    [value] = [value for _section, name, value
               in ini.options(install_guide.conf()) if name == option]
    return value


def test_nova_conf_is_that_of_the_guide(devstack):
    filters = _of_the_guide('enabled_filters').removesuffix(
        ',AcceleratorFilter')
    devstack.conf.write_text(
        f'[filter_scheduler]\nenabled_filters = {filters}\n'
        '[DEFAULT]\ncompute_driver = libvirt.LibvirtDriver\n')
    devstack.run('stack post-config',
                 NOVA_ACCEL_DEVICE_SPEC=_of_the_guide('device_spec'))
    expected = [
        (section, option, str(devstack.profiles)
         if option == 'profile_dirs' else value)
        for section, option, value in ini.options(install_guide.conf())]
    assert devstack.options() == sorted(expected)
    assert devstack.profiles.is_dir()


def test_other_filters_and_weighers_stay(devstack):
    devstack.conf.write_text("""\
[filter_scheduler]
available_filters = other.Filter
enabled_filters = ComputeFilter,NUMATopologyFilter
weight_classes = other.Weigher
""")
    devstack.run('stack post-config', services='n-sch')
    assert devstack.options() == [
        ('filter_scheduler', 'available_filters',
         'nova_accel.scheduler.filter.AcceleratorFilter'),
        ('filter_scheduler', 'available_filters', 'other.Filter'),
        ('filter_scheduler', 'enabled_filters',
         'ComputeFilter,NUMATopologyFilter,AcceleratorFilter'),
        ('filter_scheduler', 'weight_classes',
         'other.Weigher,nova_accel.scheduler.weigher.AcceleratorWeigher')]


@pytest.mark.parametrize('service, options', [
    ('n-api', {'profile_dirs'}),
    ('n-cpu', {'compute_driver'}),
    ('n-sch', {'available_filters', 'enabled_filters', 'weight_classes'}),
    ('n-cond', set()),
])
def test_host_gets_the_options_of_its_services(devstack, service, options):
    devstack.run('stack post-config', services=service)
    assert {option for _section, option, _value
            in devstack.options()} == options


def test_driver_is_linked_into_the_clone_of_nova(devstack):
    said = devstack.run('stack install')
    assert f'setup_install {_ROOT} openstack\n' in said
    assert (devstack.nova / 'nova' / 'virt' / 'accel').readlink() == (
        _ROOT / 'nova_accel' / 'shim')
    # It would hide the clone.
    assert not (devstack.site / 'nova').exists()


def test_driver_stays_beside_an_installed_nova(devstack):
    (devstack.site / 'nova' / '__init__.py').touch()
    devstack.run('stack install')
    assert (devstack.site / 'nova' / 'virt' / 'accel').is_dir()
    assert not (devstack.nova / 'nova' / 'virt' / 'accel').exists()


def test_clean_removes_the_link(devstack):
    devstack.run('stack install')
    devstack.run('clean')
    assert not (devstack.nova / 'nova' / 'virt' / 'accel').is_symlink()


@pytest.mark.parametrize('mode', [
    'stack pre-install', 'stack extra', 'stack test-config', 'unstack'])
def test_other_phases_do_nothing(devstack, mode):
    assert devstack.run(mode) == 'plugin nova-accel\n'
    assert devstack.options() == []
