# SPDX-License-Identifier: Apache-2.0
"""Nova's functional harness, as both sides of the comparison need it."""

import collections.abc
import sys

from nova.tests import fixtures
from oslo_config import cfg


def configure(nova_conf: collections.abc.Callable[[cfg.ConfigOpts], None],
              ) -> None:
    """Let a function set defaults of nova.conf before each test."""
    set_up = fixtures.ConfFixture.setUp

    def configured(fixture):
        set_up(fixture)
        nova_conf(fixture.conf)

    fixtures.ConfFixture.setUp = configured


def both_sides(conf: cfg.ConfigOpts) -> None:
    # Nova's wheel puts it there; Nova's fixtures look in its source.
    conf.set_default('api_paste_config',
                     f'{sys.prefix}/etc/nova/api-paste.ini', group='wsgi')
