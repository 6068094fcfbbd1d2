# SPDX-License-Identifier: Apache-2.0
"""Boot and delete a server; measure durations, requests and writes."""

import collections
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import datetime
import itertools
import pathlib
import random
import re
import time

from tests.integration import steps
from tests.integration.versus import access

#: Seconds between two polls of a server.
POLL = 0.1

#: Seconds after which a boot or delete has failed.
_PATIENCE = 120

#: Seconds that services get to write their last log lines.
_SETTLE = 1.0

#: A line that nova-compute logs when a server becomes ACTIVE, with its time.
_BUILT = (r'^(\S+ \S+) .*\[instance: {}\] '
          r'Took \S+ seconds to build instance\.')

#: Lines that it logs after the claim and after the driver's spawn.
_CLAIMED = r'^(\S+ \S+) .*\[instance: {}\] Claim successful'
_SPAWNED = (r'^(\S+ \S+) .*\[instance: {}\] '
            r'Took (\S+) seconds to spawn the instance')

#: The microversion of all requests.
_COMPUTE_API = '2.96'

#: MariaDB's counters of commits and of writing statements.
_COUNTERS = {'transactions': ('Com_commit',),
             'writes': ('Com_insert', 'Com_update', 'Com_delete')}


class Trials:
    """:param connection: the SDK's connection, as administrator
    :param image: the id of the servers' image
    :param logs: access logs by service
    :param compute: nova-compute's log
    """

    def __init__(self, connection, image: str,
                 logs: Mapping[str, pathlib.Path], compute: pathlib.Path):
        self._compute = connection.compute
        self._image = image
        self._logs = logs
        self._log = compute

    def run(self, flavor: str) -> dict:
        """Boot a server of a flavor and delete it.

        :returns: for ``boot`` and ``delete``: ``seconds``, ``requests`` by
            service, and MariaDB's counters; for ``boot`` also ``claimed``,
            the seconds from the claim to the driver
        :raises RuntimeError: if the server goes to ERROR
        """
        server = None

        def boot():
            nonlocal server
            answer = self._ask('POST', '/servers', json={'server': {
                'name': f'trial-{flavor}', 'flavorRef': flavor,
                'imageRef': self._image, 'networks': 'none'}})
            server = answer.json()['server']['id']
            return answer, lambda: self._active(server)

        def delete():
            return (self._ask('DELETE', f'/servers/{server}'),
                    lambda: self._gone(server))

        booted = self._measure(boot)
        booted['claimed'] = claimed(
            self._log.read_text(errors='replace'), server)
        return {'boot': booted, 'delete': self._measure(delete)}

    def _measure(self, begin: Callable) -> dict:
        logs = access.Logs(self._logs)
        before = self._counters()
        start = time.time()
        answer, over = begin()
        while not (end := over()):
            if time.time() - start > _PATIENCE:
                raise RuntimeError(
                    f'{answer.request.method} {answer.url} has no effect '
                    f'after {_PATIENCE} s; see the services\' logs')
            time.sleep(POLL)
        time.sleep(_SETTLE)
        after = self._counters()
        caused = logs.caused_by(answer.headers['x-openstack-request-id'])
        return {'seconds': round(end - start, 3),
                'requests': dict(collections.Counter(
                    map(access.kind, caused))),
                'asked': list(map(access.kept, caused)),
                **{name: after[name] - before[name] for name in after}}

    def _active(self, server) -> float | None:
        """Return when a server became ACTIVE, None if it is not ACTIVE."""
        shown = self._ask('GET', f'/servers/{server}').json()['server']
        if shown['status'] == 'ERROR':
            fault = shown.get('fault', {}).get('message', 'no reason is given')
            raise RuntimeError(f'server {server} is not started: {fault}')
        return (built(self._log.read_text(errors='replace'), server)
                if shown['status'] == 'ACTIVE' else None)

    def _gone(self, server) -> float | None:
        """Return the current time if a server is gone, otherwise None."""
        found = self._compute.get(f'/servers/{server}',
                                  microversion=_COMPUTE_API)
        return time.time() if found.status_code == 404 else None

    def _ask(self, method, path, **keywords):
        answer = self._compute.request(
            path, method, microversion=_COMPUTE_API, **keywords)
        if answer.status_code >= 400:
            raise RuntimeError(f'{method} {path}: {answer.status_code} '
                               f'{answer.text[:500]}')
        return answer

    def _counters(self) -> dict[str, int]:
        status = dict(line.split('\t') for line in steps.run(
            'mariadb', '--batch', '--skip-column-names', '-e',
            'SHOW GLOBAL STATUS LIKE "Com%"').splitlines())
        return {name: sum(int(status[counter]) for counter in counters)
                for name, counters in _COUNTERS.items()}


def built(log: str, server: str) -> float | None:
    """Return the seconds since 1970 at which a server became ACTIVE.

    :param log: nova-compute's log
    """
    found = re.search(_BUILT.format(server), log, re.MULTILINE)
    return found and _seconds(found[1])


def claimed(log: str, server: str) -> float:
    """Return the seconds from a server's claim to the driver.

    :param log: nova-compute's log, which has hundredths of seconds
    """
    claim = re.search(_CLAIMED.format(server), log, re.MULTILINE)
    spawn = re.search(_SPAWNED.format(server), log, re.MULTILINE)
    return round(_seconds(spawn[1]) - float(spawn[2]) - _seconds(claim[1]), 3)


def _seconds(written):
    return datetime.datetime.fromisoformat(written).timestamp()


def interleaved(ways: Sequence[str], rounds: int) -> list[tuple[str, ...]]:
    """Return an order of the ways for each round.

    All orders come equally often, as far as the number of rounds allows.
    """
    rng = random.Random(rounds)
    orders: list[tuple[str, ...]] = []
    while len(orders) < rounds:
        every = list(itertools.permutations(ways))
        rng.shuffle(every)
        orders.extend(every)
    return orders[:rounds]
