# SPDX-License-Identifier: Apache-2.0
"""The plugin class for Tempest, with the tests' options."""

import pathlib

from oslo_config import cfg
from tempest.test_discover import plugins

GROUP = cfg.OptGroup('nova_accel', title='nova_accel')
OPTIONS = [
    cfg.ListOpt('virsh', default=['virsh', '-c', 'qemu:///system'],
                help='The words of a command that runs virsh on the compute '
                     'node.'),
]


class Plugin(plugins.TempestPlugin):
    """The plugin; Tempest finds it by the entry point."""

    def load_tests(self):
        here = pathlib.Path(__file__).parent
        return str(here), str(here.parent)

    def register_opts(self, conf):
        conf.register_group(GROUP)
        conf.register_opts(OPTIONS, GROUP)

    def get_opt_lists(self):
        return [(GROUP.name, OPTIONS)]
