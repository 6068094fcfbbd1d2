# SPDX-License-Identifier: Apache-2.0
"""Changes to Nova's test fixtures that both sides of the comparison need."""

import collections.abc
import sys

from nova.tests import fixtures
from oslo_config import cfg


def prepare() -> None:
    """Make Nova's fixtures work with Nova's wheel, and remove a deadlock."""
    configure(_api_paste)
    # Nova's fixture blocks new readers while a writer waits. A thread that
    # reads a cell's database can wait for another thread that has to read it,
    # as with a periodic task during a live migration. If the test calls
    # nova-api at this moment, both wait for ever. It happens with any driver.
    fixtures.ReaderWriterLock.has_pending_writers = False


def configure(nova_conf: collections.abc.Callable[[cfg.ConfigOpts], None],
              ) -> None:
    """Call a function that sets defaults of nova.conf before each test."""
    set_up = fixtures.ConfFixture.setUp

    def configured(fixture):
        set_up(fixture)
        nova_conf(fixture.conf)

    fixtures.ConfFixture.setUp = configured


def _api_paste(conf: cfg.ConfigOpts) -> None:
    # Nova's wheel installs the file here. Nova's fixtures look for it in
    # Nova's source tree.
    conf.set_default('api_paste_config',
                     f'{sys.prefix}/etc/nova/api-paste.ini', group='wsgi')
