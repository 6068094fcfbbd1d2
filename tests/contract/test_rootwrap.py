# SPDX-License-Identifier: Apache-2.0
"""Nova's rootwrap filters, which also allow nova_accel's privsep helper."""

import pathlib
import sys

from oslo_config import cfg
from oslo_privsep import priv_context
from oslo_rootwrap import wrapper
import pytest

from nova_accel.host import privileged


class _Conf:
    """A configuration that was read from nova.conf."""

    config_file = ('/etc/nova/nova.conf',)
    config_dir = None

    def __init__(self, real):
        self._real = real

    def __getitem__(self, group):
        return self._real[group]


@pytest.fixture(params=privileged.CONTEXTS, ids=str)
def command(request, monkeypatch):
    """Return the command that oslo.privsep runs with rootwrap."""
    monkeypatch.setattr(priv_context, '_HELPER_COMMAND_PREFIX', [])
    monkeypatch.setattr(priv_context.cfg, 'CONF', _Conf(cfg.CONF))
    return request.param.helper_command('/tmp/tmpx/privsep.sock')


def test_rootwrap_filters_of_nova_allow_the_privsep_helper(command):
    theirs = pathlib.Path(sys.prefix, 'etc', 'nova', 'rootwrap.d')
    assert theirs.is_dir()
    assert command[0] == 'privsep-helper'
    assert any(rule.match(command)
               for rule in wrapper.load_filters([str(theirs)]))
