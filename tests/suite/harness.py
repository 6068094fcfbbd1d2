# SPDX-License-Identifier: Apache-2.0
"""Nova's functional harness, as both sides of the comparison need it."""

import collections.abc
import sys

from nova.tests import fixtures
from oslo_config import cfg


def prepare() -> None:
    """Make it work where only Nova's wheel is, and without its deadlock."""
    configure(_api_paste)
    # A thread that reads a cell's database and waits for another one that
    # has to (a periodic task in the middle of a live migration) waits for
    # ever, if the test asks nova-api at this moment: Nova's fixture lets
    # nobody read while somebody waits to write. So it happens, now and then,
    # whatever the driver.
    fixtures.ReaderWriterLock.has_pending_writers = False


def configure(nova_conf: collections.abc.Callable[[cfg.ConfigOpts], None],
              ) -> None:
    """Let a function set defaults of nova.conf before each test."""
    set_up = fixtures.ConfFixture.setUp

    def configured(fixture):
        set_up(fixture)
        nova_conf(fixture.conf)

    fixtures.ConfFixture.setUp = configured


def _api_paste(conf: cfg.ConfigOpts) -> None:
    # Nova's wheel puts it there; Nova's fixtures look in its source.
    conf.set_default('api_paste_config',
                     f'{sys.prefix}/etc/nova/api-paste.ini', group='wsgi')
