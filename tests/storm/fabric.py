# SPDX-License-Identifier: Apache-2.0
"""A storm on hosts whose GPUs are behind NVSwitches.

Fabric managers restart, fail at random, and lose links. When a guest starts,
the active partitions with its GPUs have exactly these. No active partition has
GPUs of two servers. After the next round, none is active that no server needs.
"""

import fixtures

from nova_accel.compute.state import local_host
from tests.functional import fabric
from tests.storm import crashes
from tests.storm import storm


class OwnManager(fixtures.Fixture):
    """Make each nova-compute ask the fabric manager of its own host."""

    def __init__(self, options):
        self._options = options

    def _setUp(self):
        begin = local_host.LocalHost.__init__

        def begun(this, *args, **kwargs):
            begin(this, *args, **kwargs)
            option = self._options[local_host.CONF.host]
            this.fabric_manager = lambda: option

        self.useFixture(fixtures.MonkeyPatch(
            'nova_accel.compute.state.local_host.LocalHost.__init__', begun))


class FabricStorm(crashes.CrashStorm):
    """A storm of servers with partitions of one, two and four GPUs."""

    PROFILES = {'': 0, 'one': 1, 'two': 2, 'four': 4}

    def setUp(self):
        self._fabrics: dict[str, fabric.Fabric] = {}
        self._options: dict[str, str] = {}
        self.useFixture(OwnManager(self._options))
        super().setUp()

    def start_compute(self, hostname='compute1', *args, **facts):
        if hostname not in self._fabrics:
            self.directory_host()
            self._fabrics[hostname] = self.useFixture(fabric.Fabric(
                lambda: hostname in self.computes and self.connection(
                    hostname), restart_mode=hostname in storm.HOSTS[:2]))
            self._options[hostname] = self._fabrics[hostname].option
        return super().start_compute(hostname, *args, **facts)

    def _write_profile(self, name, count):
        self.gpu_profile(name, count, numa='off', **{
            'affinity': [{'same': 'link_domain'}]} if count > 1 else {})

    # Steps

    def _step(self):
        happens, = self._random.choices(
            (self._lose_a_host, self._restart, self._die_amid,
             self._restart_manager, self._disturb, self._go_on),
            (4, 5, 15, 10, 15, 51))
        happens()

    def _go_on(self):
        self._do(self._several())

    def _restart_manager(self):
        host, own = self._any()
        self._log.write(f'{host}: the fabric manager restarts')
        own.manager.stop()
        if self._random.random() < 0.5:
            self._do(self._several())
        own.manager.start()
        if self._random.random() < 0.5:
            self._do(self._several())
        self.run_periodic_tasks()

    def _disturb(self):
        """Perform operations while a manager fails at random."""
        host, own = self._any()
        state = self._random.choice((
            {'seed': self._random.randrange(1000), 'rate': 0.5},
            {'bad_links': self._random.sample(range(1, 9), 2)},
            {'in_reset': self._random.sample(range(1, 9), 2)},
            {'skew': 'list'}))
        self._log.write(f'{host}: fabric manager: {state}')
        own.manager.set(**state)
        self._do(self._several())
        own.manager.set(seed=None, rate=0.0, bad_links=[], in_reset=[],
                        skew='')

    def _any(self):
        return self._random.choice(list(self._fabrics.items()))

    def _power_off(self, host):
        super()._power_off(host)
        self._fabrics[host].manager.set(active=[], waits=False)

    # Checks

    def _check(self):
        super()._check()
        if lines := [line for own in self._fabrics.values()
                     for line in own.unconnected]:
            raise storm.Violation('\n'.join(lines))
        self._check_active(self._held(), lambda servers: len(servers) > 1,
                           'an active partition has GPUs of')
        self.run_periodic_tasks()
        # A server that did not start again has no domain, and keeps its GPUs.
        self._check_active(self._promised() | self._held(),
                           lambda servers: not servers,
                           'an active partition has GPUs of no server')

    def _check_active(self, held, is_wrong, what):
        for host, own in self._fabrics.items():
            for members in own.active():
                servers = {held[host, address] for address in members
                           if (host, address) in held}
                if is_wrong(servers):
                    raise storm.Violation(
                        f'{host}: {what} {", ".join(sorted(servers))}: '
                        f'{sorted(members)}')
