# SPDX-License-Identifier: Apache-2.0
"""Nova's harness, without the time that it spends on nothing.

It asks twice a second whether a server has changed, its message bus asks
twenty times a second for messages, and each idle worker wakes up a hundred
times a second. Here all of them wait until something happens. What does not
differ between tests is made once: tables' aliases and compiled SQL, and one
API instead of two.
"""

import functools
import pkgutil
import threading
import time
import types

import fixtures
from futurist import _thread
from nova.api.openstack import urlmap
import nova.conf
from nova.tests.functional import integrated_helpers
from oslo_config import fixture as config
from oslo_messaging._drivers import impl_fake
import sqlalchemy
from sqlalchemy import event
from sqlalchemy import pool

#: Seconds that an idle thread waits for work before it looks whether it is to
#: end. It is woken up when it is.
_IDLE = 1


class Bell:
    """Ends the waits of all who wait for it to ring."""

    def __init__(self):
        self._changed = threading.Condition()
        self._rings = 0
        self._heard = threading.local()

    def ring(self):
        with self._changed:
            self._rings += 1
            self._changed.notify_all()

    def wait(self, seconds):
        """Return when it rings, or at once if it did since the last wait."""
        heard = getattr(self._heard, 'rings', 0)
        with self._changed:
            self._changed.wait_for(lambda: self._rings != heard, seconds)
            self._heard.rings = self._rings


class Waits(fixtures.Fixture):
    """Those who poll look again when something has happened."""

    def _setUp(self):
        servers, messages = Bell(), Bell()
        self._poll(integrated_helpers, servers.wait)
        self._poll(impl_fake, lambda _seconds: messages.wait(_IDLE))
        for news in ('FakeExchange.deliver_message', 'FakeListener.stop'):
            self._ring(messages, f'oslo_messaging._drivers.impl_fake:{news}')
        self._ring(servers, 'nova.objects:Instance.save', _is_settled)
        for end in ('Instance.destroy', 'InstanceFault.create',
                    'Migration.save'):
            self._ring(servers, f'nova.objects:{end}')

    def _poll(self, module, wait):
        """Have a module wait where it would sleep."""
        self.useFixture(fixtures.MockPatchObject(
            module, 'time', types.SimpleNamespace(
                sleep=wait, time=time.time)))

    def _ring(self, bell, name, when=lambda *_arguments: True):
        """Ring when a method has returned."""
        owner, _, method = name.rpartition('.')
        owner = pkgutil.resolve_name(owner)
        does = getattr(owner, method)

        @functools.wraps(does)
        def do(*args, **kwargs):
            try:
                return does(*args, **kwargs)
            finally:
                if when(*args):
                    bell.ring()

        self.useFixture(fixtures.MonkeyPatch(
            f'{owner.__module__}.{owner.__name__}.{method}', do))


def _is_settled(instance, *_arguments):
    """Whether no operation goes on with a server.

    The harness counts how often it looks; it should not look at each step.
    """
    return instance.task_state is None


class _Nothing:
    """Work that wakes up a worker."""

    def run(self):
        pass


class Workers(fixtures.Fixture):
    """Native threads that sleep until there is work, or are told to end."""

    def _setUp(self):
        begin = _thread.ThreadWorker.__init__
        stop = _thread.ThreadWorker.stop

        def begin_idle(worker, *args):
            begin(worker, *args)
            worker.MAX_IDLE_FOR = _IDLE

        def stop_at_once(worker):
            stop(worker)
            # Garbage collection stops those whose executor is gone. It may
            # have come in the midst of a put or get of this very queue.
            if worker.executor_ref() is not None:
                worker.work_queue.put(_Nothing())

        for name, ours in (('__init__', begin_idle), ('stop', stop_at_once)):
            self.useFixture(fixtures.MockPatchObject(
                _thread.ThreadWorker, name, ours))


class _Statements(dict):
    """Compiled SQL by what it is compiled from, for all databases.

    SQLAlchemy keeps it for each database by its dialect object.
    """

    def get(self, key, default=None):
        return super().get(_by_name(key), default)

    def __setitem__(self, key, compiled):
        super().__setitem__(_by_name(key), compiled)


def _by_name(key):
    dialect, *statement = key
    return dialect.name, *statement


_STATEMENTS = _Statements()


def _forget_transaction(_connection, record):
    """A transaction that the pool rolled back is over, for oslo.db as well."""
    record.info.pop('in_transaction', None)


_alias = functools.cache(sqlalchemy.alias)


class Databases(fixtures.Fixture):
    """Databases that keep their connections, and compile a statement once.

    oslo.db opens a file of SQLite anew for each transaction, and reads its
    schema again. Placement makes the aliases of its tables, with all of their
    columns, for each request.
    """

    def _setUp(self):
        create = sqlalchemy.create_engine

        def create_engine(*args, **kwargs):
            keep = kwargs.get('poolclass') is pool.NullPool
            if keep:
                kwargs.update(poolclass=pool.QueuePool, max_overflow=-1)
            engine = create(*args, **kwargs)
            if keep:
                event.listen(engine, 'checkin', _forget_transaction)
            engine._compiled_cache = _STATEMENTS
            return engine

        for name, ours in (('create_engine', create_engine),
                           ('alias', _alias)):
            self.useFixture(fixtures.MockPatchObject(sqlalchemy, name, ours))


class Settings(fixtures.Fixture):
    """Options that nobody looks for in the environment at each use.

    And answers of nova-api that are not compared with their schema: Nova's own
    tests do that.
    """

    def _setUp(self):
        conf = nova.conf.CONF
        self.useFixture(fixtures.MockPatchObject(conf, '_use_env', False))
        self.useFixture(config.Config(conf)).config(
            response_validation='ignore', group='api')


class Api(fixtures.Fixture):
    """nova-api without its second set of the same routes, for /v2."""

    def _setUp(self):
        build = urlmap.urlmap_factory

        def build_one(loader, global_conf, **paths):
            return build(loader, global_conf, **{
                path: name for path, name in paths.items()
                if not path.startswith('/v2/') and path != '/v2'})

        self.useFixture(fixtures.MockPatchObject(
            urlmap, 'urlmap_factory', build_one))


class Pace(fixtures.Fixture):
    """All of this."""

    def _setUp(self):
        for fixture in (Waits, Workers, Databases, Settings, Api):
            self.useFixture(fixture())
