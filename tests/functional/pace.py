# SPDX-License-Identifier: Apache-2.0
"""Fixtures that save polling and repeated work in Nova's functional harness.

The harness polls twice a second for a change of a server. Its message bus
polls twenty times a second for messages. Each idle worker wakes up a hundred
times a second. With these fixtures all of them wait for an event. Aliases of
tables and compiled SQL are the same in all tests, so they are made once.
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

#: Seconds after which an idle thread checks whether it must end. A stop also
#: wakes it up.
_IDLE = 1


class Bell:
    """An event that wakes up all threads that wait for it."""

    def __init__(self):
        self._changed = threading.Condition()
        self._rings = 0
        self._heard = threading.local()

    def ring(self):
        with self._changed:
            self._rings += 1
            self._changed.notify_all()

    def wait(self, seconds):
        """Wait for a ring; return at once if one came since the last wait."""
        heard = getattr(self._heard, 'rings', 0)
        with self._changed:
            self._changed.wait_for(lambda: self._rings != heard, seconds)
            self._heard.rings = self._rings


class Waits(fixtures.Fixture):
    """Make polling loops wait for an event instead of a fixed time."""

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
        """Replace the sleep of a module by a wait."""
        self.useFixture(fixtures.MockPatchObject(
            module, 'time', types.SimpleNamespace(
                sleep=wait, time=time.time)))

    def _ring(self, bell, name, when=lambda *_arguments: True):
        """Ring after each call of a method."""
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
    """Return whether a server has no operation in progress.

    The harness limits its number of polls, so it must not wake at each step.
    """
    return instance.task_state is None


class _Nothing:
    """An empty work item. It wakes up a worker."""

    def run(self):
        pass


class Workers(fixtures.Fixture):
    """Make idle native threads sleep until they get work or must end."""

    def _setUp(self):
        begin = _thread.ThreadWorker.__init__
        stop = _thread.ThreadWorker.stop

        def begin_idle(worker, *args):
            begin(worker, *args)
            worker.MAX_IDLE_FOR = _IDLE

        def stop_at_once(worker):
            stop(worker)
            # Garbage collection of an executor stops its workers. It can
            # interrupt a put or get that holds the lock of this queue, and a
            # put here would then block.
            if worker.executor_ref() is not None:
                worker.work_queue.put(_Nothing())

        for name, ours in (('__init__', begin_idle), ('stop', stop_at_once)):
            self.useFixture(fixtures.MockPatchObject(
                _thread.ThreadWorker, name, ours))


class _Statements(dict):
    """A cache of compiled SQL by statement, shared by all databases.

    SQLAlchemy's cache keys contain the dialect object, which differs between
    databases.
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
    """Make oslo.db forget a transaction that the pool rolled back."""
    record.info.pop('in_transaction', None)


_alias = functools.cache(sqlalchemy.alias)


class Databases(fixtures.Fixture):
    """Keep database connections, compiled statements and aliases of tables.

    oslo.db opens the SQLite file and reads its schema for each transaction.
    Placement creates the aliases of its tables, with all columns, for each
    request.
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
    """Skip options from the environment, and the validation of API responses.

    Nova's own tests validate the responses.
    """

    def _setUp(self):
        conf = nova.conf.CONF
        self.useFixture(fixtures.MockPatchObject(conf, '_use_env', False))
        self.useFixture(config.Config(conf)).config(
            response_validation='ignore', group='api')


class Api(fixtures.Fixture):
    """Build nova-api without /v2, which has the same routes as /v2.1."""

    def _setUp(self):
        build = urlmap.urlmap_factory

        def build_one(loader, global_conf, **paths):
            return build(loader, global_conf, **{
                path: name for path, name in paths.items()
                if not path.startswith('/v2/') and path != '/v2'})

        self.useFixture(fixtures.MockPatchObject(
            urlmap, 'urlmap_factory', build_one))


class Pace(fixtures.Fixture):
    """All fixtures of this module."""

    def _setUp(self):
        for fixture in (Waits, Workers, Databases, Settings, Api):
            self.useFixture(fixture())
