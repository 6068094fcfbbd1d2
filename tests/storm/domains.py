# SPDX-License-Identifier: Apache-2.0
"""A storm of server groups whose servers have to be in one host domain.

Several servers of a group are requested at once, by one or more requests.
After each step, the servers of a group are in one rack.
"""

from tests.functional import cloud
from tests.functional import test_same_domain
from tests.storm import storm

RACKS = test_same_domain.SameDomainTest.RACKS


class DomainStorm(test_same_domain.Racks, storm.Storm):
    """A storm on two racks with two hosts each."""

    PROFILES = {'one': 1, 'two': 2, 'three': 3}

    def setUp(self):
        super().setUp()
        self.flags(server_group_members=-1, group='quota')
        for name, hosts in RACKS.items():
            self.rack(name, hosts)
        self._hints = [self.group() for _group in range(3)]

    def _write_profile(self, name, count):
        self.gpu_profile(name, count, numa='off', same_domain='required')

    # Steps

    def _several(self):
        if self._random.random() < 0.3:
            return [self._some(()) for _time in range(
                self._random.choice((2, 3)))]
        # Servers that are moved at once do not know of each other.
        return super()._several()[:1]

    def _boot(self, profile):
        hints, count = (self._random.choice(self._hints),
                        self._random.choice((1, 1, 2, 3)))
        return storm.Operation('boot', lambda: self.api.post_server({
            'server': self._build_server(
                image_uuid=cloud.IMAGE, flavor_id=self._flavors[profile],
                networks='none') | {'min_count': count, 'max_count': count},
            **hints}), words=f'{count} times {profile}')

    # Checks

    def _check(self):
        super()._check()
        for group in self.api.api_get('/os-server-groups').body[
                'server_groups']:
            hosts = {server['OS-EXT-SRV-ATTR:host']
                     for uuid, server in self._servers().items()
                     if uuid in group['members']
                     and server['status'] != 'ERROR'} - {None}
            if not any(hosts <= {*rack} for rack in RACKS.values()):
                raise storm.Violation(f'servers of one group are on '
                                      f'{", ".join(sorted(hosts))}')
