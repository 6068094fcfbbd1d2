# SPDX-License-Identifier: Apache-2.0
"""A storm of entries, in which devices are cleaned between two servers.

No server gets a function that another one had before its cleaner has run.
"""

import json
import pathlib
import stat

import fixtures

from nova_accel.core.placement import dirt
from tests.storm import entries
from tests.storm import storm

_SCRIPT = """#!/bin/sh
[ "$1" = clean ] || echo "$2 $3" >> "$0.done"
"""


class CleaningStorm(entries.EntryStorm):
    """A storm in which every entry names a cleaner, except those of mdevs."""

    def setUp(self):
        self._script = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path, 'cleaner')
        self._script.write_text(_SCRIPT)
        self._script.chmod(stat.S_IRWXU)
        # The last server of each function, by host and address.
        self._left: dict[tuple[str, str], str] = {}
        self._read = 0
        super().setUp()
        # Whole cards have more than one server after another.
        self._whole = set()

    def start_compute(self, *args, **facts):
        self.flags(cleaner=[json.dumps({
            'name': f'wipe-{host}',
            **{step: [str(self._script), step, host, '{address}']
               for step in ('clean', 'verify')}})
            for host in entries.MACHINES], group='nova_accel')
        return super().start_compute(*args, **facts)

    def _entries(self, host):
        return [entry if 'mdev_type' in entry else
                {key: value for key, value in entry.items()
                 if key != 'one_time_use'} | {'clean': f'wipe-{host}'}
                for entry in super()._entries(host)]

    def _check(self):
        super()._check()
        for place in self._cleaned():
            self._left.pop(place, None)
        for place, uuid in self._held().items():
            if self._left.setdefault(place, uuid) != uuid:
                raise storm.Violation(
                    f'{uuid} has {place}, which {self._left[place]} had, and '
                    'nothing has cleaned it since')

    def _cleaned(self):
        """Return what cleaners have cleaned since the last call."""
        log = self._script.with_suffix('.done')
        lines = log.read_text().splitlines() if log.exists() else []
        new, self._read = lines[self._read:], len(lines)
        return [tuple(line.split()) for line in new]

    def freed(self, host, card):
        """An operator has cleaned what he frees."""
        held = self._held()
        self._left = {place: uuid for place, uuid in self._left.items()
                      if place in held or place[0] != host
                      or self._card_of(*place) != card}

    def _check_left(self):
        self._free_dirty()
        super()._check_left()

    def _free_dirty(self):
        """Free what no entry of now has a cleaner for."""
        self.placement.put(f'/traits/{dirt.FREE}', {}, version='1.6')
        for host in storm.HOSTS:
            for provider in self._providers(host).values():
                url = f'/resource_providers/{provider["uuid"]}/traits'
                before = self.placement.get(url, version='1.6').body
                if any(map(dirt.is_trait, before['traits'])):
                    self.placement.put(url, {**before, 'traits': [
                        *before['traits'], dirt.FREE]}, version='1.6')
        for _round in range(2):
            self.run_periodic_tasks()
