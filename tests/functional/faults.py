# SPDX-License-Identifier: Apache-2.0
"""Services that act like separate processes, and can be killed.

Nova's harness runs all services as green or native threads of one process, and
treats casts as calls. Here casts are casts, so that operations overlap. Each
nova-compute has its own CONF.host and Placement client. A test can kill a
nova-compute.
"""

import contextlib
import contextvars
import dataclasses
import functools
import pkgutil
import threading
import time

import fixtures
from nova import context as nova_context
from nova import utils
from nova.db.main import api as db
from nova.scheduler.client import report
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional.api import client
from oslo_concurrency import lockutils
from oslo_messaging._drivers import impl_fake
from oslo_utils import importutils
from placement import handler

from nova_accel.host import background
from tests.functional import cloud
from tests.functional import pace

# Since Nova 34 all services of a process share thread pools.
pools = importutils.try_import('nova.thread_pool_factory')

# Keep the original function, which Nova's fixtures replace.
_target_cell = nova_context.target_cell

#: Calls with which a nova-compute changes something outside of its process. If
#: it dies between two of these calls, the exact place makes no difference.
EFFECTS = {
    'nova.tests.fixtures.libvirt:Connection': ('defineXML',),
    'nova.tests.fixtures.libvirt:Domain': (
        'attachDeviceFlags', 'createWithFlags', 'destroy',
        'detachDeviceFlags', 'managedSave', 'migrateToURI3', 'resume',
        'shutdown', 'suspend', 'undefine'),
    'nova.scheduler.client.report:SchedulerReportClient': (
        'delete', 'post', 'put'),
    'nova.objects.instance:Instance': ('destroy', 'save'),
    'nova.objects.migration:Migration': ('save',),
    'nova_accel.host.commands': ('run',),
    'nova_accel.host.operations': ('write',),
    'oslo_messaging._drivers.impl_fake:FakeDriver': ('_send',),
}

#: A long timeout, in seconds.
_LONG = 60


class Death(BaseException):
    """Raised at the end of a test to end the threads of killed services."""


@dataclasses.dataclass(eq=False)
class _Task:
    """A task of one service.

    :param host: host of the service, if it is known
    :param dead: whether the service was killed
    """

    host: str | None = None
    dead: bool = False


# The work of the test itself and of nova-api.
_NOBODYS = _Task()

_current: contextvars.ContextVar[_Task] = contextvars.ContextVar(
    'current', default=_NOBODYS)


class Fault:
    """The death of a nova-compute.

    :param nth: number of the effect before which it dies
    :param every: count every effect. Otherwise equal effects in a row, such as
        several saves of an instance, count as one
    """

    def __init__(self, host: str, nth: int, every: bool = False):
        self.host = host
        self.met: list[str] = []
        self._nth = nth
        self._every = every

    def strikes(self, effect: str) -> bool:
        if self._every or self.met[-1:] != [effect]:
            self.met.append(effect)
        return self.struck

    @property
    def struck(self) -> bool:
        return len(self.met) >= self._nth

    def __str__(self):
        return (f'nova-compute of {self.host} dies before effect '
                f'{len(self.met)}, {self.met[-1]}')


class Processes(fixtures.Fixture):
    """Track the service of each thread, and its unfinished work."""

    def __init__(self):
        super().__init__()
        self.fault: Fault | None = None
        #: Hosts whose nova-compute was killed.
        self.down: set[str] = set()
        self._working: set[_Task] = set()
        self._frozen: set[_Task] = set()
        #: Number of tasks that have begun.
        self._begun = 0
        self._counting = threading.Lock()
        self._ended = pace.Bell()
        #: Threads that have a message, or poll for one.
        self._taking: set[int] = set()
        self._over = threading.Event()

    def _setUp(self):
        self._wrap('oslo_config.cfg:ConfigOpts', 'host',
                   lambda _none: property(_host), create=True)
        for executor in ('GreenThreadPoolExecutor', 'ThreadPoolExecutor'):
            self._wrap(f'futurist:{executor}', 'submit', self._submit)
        if hasattr(utils, 'pass_context'):
            self._wrap('nova.utils', 'pass_context', self._spawn)
        self._wrap('oslo_messaging._drivers.impl_fake:FakeExchange', 'poll',
                   self._take)
        self._wrap('oslo_messaging.rpc.dispatcher:RPCDispatcher',
                   '_do_dispatch', _dispatch)
        for owner, methods in EFFECTS.items():
            for method in methods:
                self._wrap(owner, method, functools.partial(
                    self._effect, f'{owner}.{method}'))
        # A live migration polls this until it ends, which may not happen.
        self._wrap('nova.tests.fixtures.libvirt:Domain', 'jobStats',
                   self._look)

    @contextlib.contextmanager
    def on(self, host):
        """Run the calling thread's work as the nova-compute of a host."""
        token = _current.set(_Task(host))
        try:
            yield
        finally:
            _current.reset(token)

    def start(self, host, work):
        """Let the nova-compute of a host do work in a thread."""
        with self.on(host):
            work = self.as_task(work)
        threading.Thread(target=work, daemon=True).start()

    def as_task(self, work):
        """Return work to be done in a thread, as a task of this service."""
        task, context = self._begin()

        def done():
            try:
                context.run(work)
            except Death:
                pass
            finally:
                self._end(task)
        return done

    def settle(self, timeout=240):
        """Wait until no service has work left."""
        deadline = time.monotonic() + timeout
        seen = None
        while self._is_busy() or seen != (seen := self._begun):
            if time.monotonic() > deadline:
                raise TimeoutError(f'tasks did not end: {self._alive()}')
            self._ended.wait(0.05)

    def forget(self, host):
        """Drop the work that a host's nova-compute was about to do."""
        self.fault = None
        self.down.add(host)
        for task in list(self._working):
            task.dead = task.dead or task.host == host

    def bury(self):
        """End the frozen threads without further effects."""
        self._over.set()
        while self._frozen or any(task.dead for task in list(self._working)):
            time.sleep(0.005)

    def _is_busy(self):
        # Check the places in the order in which a message passes them, so that
        # none is missed. The next call sees a message sent in the meantime.
        return bool(_undelivered(self.down) or self._taking or self._alive())

    def _alive(self):
        dying = self.fault.host if self.fault and self.fault.struck else None
        return [task for task in list(self._working)
                if not task.dead and (task.host is None
                                      or task.host != dying)]

    def _begin(self):
        """Begin a task of the calling service; return it and its context."""
        task = _Task(_current.get().host)
        context = contextvars.copy_context()
        context.run(_current.set, task)
        with self._counting:
            self._begun += 1
        self._working.add(task)
        return task, context

    def _submit(self, submit):
        def submitted(executor, function, *args, **kwargs):
            if _is_loop(function):
                return submit(executor, function, *args, **kwargs)
            task, context = self._begin()
            try:
                future = submit(executor, context.run, function, *args,
                                **kwargs)
            except BaseException:
                self._end(task)
                raise
            future.add_done_callback(lambda _future: self._end(task))
            return future
        return submitted

    def _spawn(self, spawn):
        """Wrap Nova 31's function that spawns without an executor."""
        def spawned(runner, function, *args, **kwargs):
            task, context = self._begin()

            @functools.wraps(function)
            def run(*args, **kwargs):
                try:
                    return context.run(function, *args, **kwargs)
                finally:
                    self._end(task)

            return spawn(runner, run, *args, **kwargs)
        return spawned

    def _take(self, poll):
        """Count a message as work until its thread polls again.

        By then the thread has submitted the work.
        """
        def polled(exchange, *args):
            thread = threading.get_ident()
            self._taking.add(thread)
            taken = poll(exchange, *args)
            if taken[1] is None:
                self._taking.discard(thread)
            return taken
        return polled

    def _end(self, task):
        self._working.discard(task)
        self._frozen.discard(task)
        self._ended.ring()

    def _effect(self, name, method):
        def performed(*args, **kwargs):
            task = _current.get()
            if task.dead or self._strikes(task, name):
                self._freeze(task)
            return method(*args, **kwargs)
        return performed

    def _look(self, method):
        def performed(*args, **kwargs):
            task = _current.get()
            if task.dead:
                self._freeze(task)
            return method(*args, **kwargs)
        return performed

    def _strikes(self, task, effect) -> bool:
        return (self.fault is not None and task.host == self.fault.host
                and self.fault.strikes(effect))

    def _freeze(self, task):
        # Block here. An exception would run the except and finally clauses,
        # which a killed process does not run.
        task.dead = True
        self._working.discard(task)
        self._frozen.add(task)
        self._ended.ring()
        self._over.wait()
        raise Death

    def _wrap(self, owner, name, wrapper, **more):
        holder = pkgutil.resolve_name(owner)
        self.useFixture(fixtures.MockPatchObject(
            holder, name, wrapper(getattr(holder, name, None)), **more))


class Background(fixtures.Fixture):
    """Let background work belong to the nova-compute that starts it."""

    def __init__(self, processes):
        super().__init__()
        self._processes = processes

    def _setUp(self):
        start = background.Runner.start
        self.useFixture(fixtures.MockPatchObject(
            background.Runner, 'start', lambda runner, work: start(
                runner, self._processes.as_task(work))))


class MortalCloud(cloud.Cloud):
    """A cloud with nova-computes that can die."""

    CAST_AS_CALL = False

    #: Seconds to wait for the answer of a nova-compute. Test cases that kill
    #: it set a short time.
    PATIENCE = _LONG

    def setUp(self):
        super().setUp()
        self.flags(rpc_response_timeout=self.PATIENCE,
                   long_rpc_timeout=self.PATIENCE)
        # A service that restarts often sends no heartbeat. The services have
        # already read service_down_time, so a change would have no effect.
        self.useFixture(fixtures.MonkeyPatch(
            'nova.servicegroup.drivers.db.DbDriver.is_up',
            lambda _driver, _service: True))
        self._wait_for_the_living()
        self._use_own_databases()
        self._take_turns_in_placement()
        self._migrate_for_good()
        self.processes = self.useFixture(Processes())
        self._audit_clock = self.useFixture(cloud.AuditClock())

    def _wait_for_the_living(self):
        """Use a long timeout for services that are never killed."""
        send = impl_fake.FakeDriver.send

        def send_patiently(driver, target, *args, timeout=None, **kwargs):
            if timeout and not target.topic.startswith('compute'):
                timeout = _LONG
            return send(driver, target, *args, timeout=timeout, **kwargs)

        self.useFixture(fixtures.MockPatchObject(
            impl_fake.FakeDriver, 'send', send_patiently))

    def _use_own_databases(self):
        """Give each service its own choice of the cell database.

        Nova's fixture switches all services to a cell and back, which fails
        with operations that overlap.
        """
        cell = db.create_context_manager(
            self.cell_mappings['cell1'].database_connection)
        self.useFixture(fixtures.MonkeyPatch(
            'nova.context.target_cell', _target_cell))
        self.useFixture(fixtures.MonkeyPatch(
            'nova.db.main.api.get_context_manager',
            lambda context: getattr(context, 'db_connection', None) or cell))

    def _take_turns_in_placement(self):
        """Handle one request to Placement at a time.

        All requests share one connection to a database in memory. A rollback
        of one request could undo a commit of another.
        """
        turn = threading.Lock()
        handle = handler.PlacementHandler.__call__

        def handle_alone(*args):
            with turn:
                return handle(*args)

        self.useFixture(fixtures.MockPatchObject(
            handler.PlacementHandler, '__call__', handle_alone))

    def _migrate_for_good(self):
        """Live migrate with PERSIST_DEST and UNDEFINE_SOURCE."""
        create = fakelibvirt.Connection.createXML
        domains = fakelibvirt.Domain
        migrate, stop, undefine = (
            domains.migrateToURI3, domains.destroy, domains.undefine)

        def create_to_stay(*args):
            domain = create(*args)
            domain._transient = False
            return domain

        def migrate_away(domain, *args, **kwargs):
            migrate(domain, *args, **kwargs)
            stop(domain)
            undefine(domain)

        self.useFixture(fixtures.MockPatchObject(
            fakelibvirt.Connection, 'createXML', create_to_stay))
        self.useFixture(fixtures.MockPatchObject(
            domains, 'migrateToURI3', migrate_away))

    def start_compute(self, hostname='compute1', *args, **kwargs):
        # A new process has a new Placement client.
        report.PLACEMENTCLIENT = None
        super().start_compute(hostname, *args, **kwargs)
        self.processes.down.discard(hostname)
        return hostname

    def kill(self, host):
        """Kill a nova-compute as SIGKILL does; its domains keep running."""
        service = self.computes[host]
        self.processes.forget(host)
        service.rpcserver.stop()
        # Since Nova 33 a service has a second RPC server.
        if alternative := getattr(service, 'rpcserver_alt', None):
            alternative.stop()
        service.tg.stop()
        service.stop = lambda: None
        if pools:
            # A pool full of frozen threads takes no new work.
            pools.FACTORY._all_executors.clear()
        # The locks of a process end with it.
        lockutils._semaphores = lockutils.Semaphores()
        lockutils._fair_locks = lockutils.FairLocks()
        # This cleanup runs before the harness waits for all work to end.
        self.addCleanup(self.processes.bury)

    # Actions of the tenant

    def act(self, server, action) -> bool:
        """Request an action, and return whether Nova accepted it."""
        try:
            self.api.post_server_action(server['id'], action)
        except client.OpenStackApiException as error:
            self.assertIn(error.response.status_code, (404, 409))
            return False
        self.processes.settle()
        return True

    def delete(self, *servers):
        for server in servers:
            if self.find(server, 'status'):
                self.api.delete_server(server['id'])
        self.processes.settle()

    def find(self, server, field):
        """Return a field of a server, or None if the server is deleted."""
        try:
            return self.api.get_server(server['id']).get(field)
        except client.OpenStackApiNotFoundException:
            return None

    # Periodic tasks

    def run_periodic_tasks(self):
        """Run PERIODIC_TASKS on each host whose nova-compute is alive."""
        self._audit_clock.skip_interval()
        for host in self.computes:
            if host not in self.processes.down:
                self.run_tasks(host, *PERIODIC_TASKS)
        self.processes.settle()

    def run_tasks(self, host, *tasks):
        """Run periodic tasks of a host's nova-compute."""
        manager = self.computes[host].manager
        with self.processes.on(host), nova_context.target_cell(
                nova_context.get_admin_context(),
                self.cell_mappings['cell1']) as context:
            for task in tasks:
                getattr(manager, task)(context)


#: Tasks of nova.compute.manager.ComputeManager. The last one must see the
#: changes of the others.
PERIODIC_TASKS = (
    '_cleanup_running_deleted_instances',
    '_cleanup_incomplete_migrations',
    '_sync_power_states',
    '_poll_rebooting_instances',
    'update_available_resource',
)


def _is_loop(function) -> bool:
    """Return whether a function is an endless loop of oslo.service."""
    return function.__module__.startswith('oslo_service.')


def _host(conf) -> str:
    """Return CONF.host of the calling service."""
    return _current.get().host or conf._get('host')


def _dispatch(dispatch):
    def dispatched(dispatcher, endpoint, *args):
        _current.get().host = getattr(endpoint, 'host', None)
        return dispatch(dispatcher, endpoint, *args)
    return dispatched


def _undelivered(down) -> bool:
    """Return whether a message waits for a service that is not down."""
    return any(
        queue for exchange in
        impl_fake.FakeExchangeManager._exchanges.values()
        for queues in (exchange._topic_queues, exchange._server_queues)
        for (_topic, server), queue in queues.items() if server not in down)
