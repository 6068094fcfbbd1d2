# SPDX-License-Identifier: Apache-2.0
"""Nova with nova_accel as in the installation guide, without device_spec."""

import pathlib

import fixtures
from nova.virt import driver
from nova.virt.libvirt import driver as libvirt_driver
from oslo_config import cfg

from nova_accel import conf as accel_conf
from nova_accel.compute import driver as accel_driver

#: A recorded machine, so that the tests do not read the real one.
_HOST = pathlib.Path(__file__).parent.parent / 'data/hosts/l1-8gpu.json'

#: Tests wrap this method of their driver, and set the wrapper in Nova's class.
#: nova_accel's method calls that of Nova's class, so it would call itself.
_OVERRIDDEN = {'nova.virt.libvirt.LibvirtDriver._get_guest_config':
               'nova.virt.accel.LibvirtDriver._get_guest_config'}


def nova_conf(conf: cfg.ConfigOpts) -> None:
    """Set the options of the installation guide, except for devices."""
    accel_conf.register_opts(conf)
    conf.set_default('sysfs_root', str(_HOST), group='nova_accel')
    conf.set_default('available_filters', [
        'nova.scheduler.filters.all_filters',
        'nova_accel.scheduler.filter.AcceleratorFilter'],
        group='filter_scheduler')
    conf.set_default('enabled_filters', [
        *conf.filter_scheduler.enabled_filters, 'AcceleratorFilter'],
        group='filter_scheduler')


def replace_driver() -> None:
    """Load nova_accel's driver instead of Nova's, and forbid Nova's."""
    load = driver.load_compute_driver
    create = libvirt_driver.LibvirtDriver.__init__
    patch = fixtures.MonkeyPatch.__init__

    def load_ours(virtapi, compute_driver=None):
        name = compute_driver or driver.CONF.compute_driver
        return load(virtapi, 'accel.LibvirtDriver'
                    if name == 'libvirt.LibvirtDriver' else name)

    def create_ours(self, *args, **kwargs):
        assert isinstance(self, accel_driver.LibvirtDriver), 'Nova\'s driver'
        create(self, *args, **kwargs)

    def patch_ours(self, name, *args, **kwargs):
        patch(self, _OVERRIDDEN.get(name, name), *args, **kwargs)

    driver.load_compute_driver = load_ours
    libvirt_driver.LibvirtDriver.__init__ = create_ours
    fixtures.MonkeyPatch.__init__ = patch_ours
