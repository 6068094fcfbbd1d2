# SPDX-License-Identifier: Apache-2.0
"""A recorded machine, a real Placement, the real services of Nova, and servers
with devices; then its GPUs are behind NVSwitches.

nova-api, nova-scheduler, nova-conductor and nova-compute run in this process,
as in Nova's own functional tests; only libvirt and Fabric Manager are fakes.
"""

import logging
import time

from lxml import etree
import prettytable

from nova_accel.cmd import drawing
from nova_accel.core.request import flavor_specs
from nova_accel.host import reader
from nova_accel.host import tree
from nova_accel.profiles import store
from tests.functional import cloud
from tests.functional import fabric

HOST = 'compute1'


class Story(cloud.Cloud):

    DEVICE_SPEC = (cloud.GPU_SPEC,)

    def __init__(self, method, screen):
        super().__init__(method)
        # Nova's test cases forget what does not begin with an underscore.
        self._screen = screen

    def setUp(self):
        begin = time.monotonic()
        super().setUp()
        self._setup_seconds = time.monotonic() - begin
        self._heard = []
        self._calls = 0
        handler = _Listener(self._heard)
        logging.getLogger('nova_accel').addHandler(handler)
        self.addCleanup(logging.getLogger('nova_accel').removeHandler,
                        handler)

    def tell(self):
        self.discover()
        self.start()
        self.report()
        self.write_profiles()
        first = self.create('h100', 'A server with one GPU')
        self.create('h100-pair', 'Two GPUs on one NUMA node')
        self.refuse('h100-five', 'Five on one NUMA node, where each has four')
        self.grow(first)
        self.switch()
        whole = self.join(4)
        self.fail_to_join(4)
        self.leave(whole)

    def discover(self):
        with self._screen.step('A recorded machine is read') as facts:
            entries, _broken = reader.parse([cloud.GPU_SPEC])
            host = reader.read(tree.open_tree(cloud.EIGHT_GPUS), entries)
            self._screen.show(f'device_spec = {cloud.GPU_SPEC}')
            self._screen.show('\n'.join(drawing.draw(
                host, cloud.EIGHT_GPUS.name, [])))
            facts['devices'] = [str(device.address)
                                for device in host.devices]

    def start(self):
        with self._screen.step('Nova and Placement are started') as facts:
            self.start_compute(HOST)
            driver = self.computes[HOST].driver
            self._screen.good(
                'compute_driver = accel.LibvirtDriver is '
                f'{type(driver).__module__}.{type(driver).__name__}')
            self._screen.show('(the other services and the databases took '
                              f'{self._setup_seconds:.2f} s before)')
            facts['setup_seconds'] = round(self._setup_seconds, 2)

    def report(self):
        with self._screen.step('The provider tree in Placement') as facts:
            table = prettytable.PrettyTable(
                ('resource provider', 'inventory', 'traits'), align='l')
            facts['providers'] = self.tree_as_placement_has_it()
            for name, totals in facts['providers'].items():
                traits = self._get_provider_traits(
                    self._providers('compute1')[name]['uuid'])
                table.add_row((name, _pairs(totals),
                               ' '.join(sorted(traits))))
            self._screen.show(str(table))

    def write_profiles(self):
        with self._screen.step('Profiles, and what one expands to') as facts:
            for name, count in (('h100', 1), ('h100-pair', 2),
                                ('h100-five', 5)):
                path = self.gpu_profile(name, count)
                if name == 'h100-pair':
                    self._screen.show(path.read_text())
            pair = store.Store([self.profiles]).get('h100-pair')
            specs = flavor_specs.expand(pair,
                                        {flavor_specs.PROFILE_KEY: pair.name})
            for key, value in specs.items():
                self._screen.show(f'→ {key}={value}')
            facts['extra_specs'] = specs

    def create(self, profile, title):
        with self._screen.step(title) as facts:
            server = self.boot(self.flavor(profile))
            self._screen.good(f'server {server["id"]} is ACTIVE')
            self._show_devices(server, facts)
        return server

    def refuse(self, profile, title):
        with self._screen.step(title) as facts:
            self._heard.clear()
            server = self.boot(self.flavor(profile), state='ERROR')
            facts['fault'] = server['fault']['message'].strip()
            facts['reasons'] = list(self._heard)
            self._screen.bad(f'server {server["id"]} is in ERROR: '
                             f'{facts["fault"]}')
            for line in facts['reasons']:
                self._screen.show(f'nova-scheduler: {line}')
            self._delete_server(server)

    def grow(self, server):
        with self._screen.step('A resize from one GPU to two') as facts:
            self.flags(allow_resize_to_same_host=True)
            self._resize_server(server, self.flavor('h100-pair'))
            self._confirm_resize(server)
            self._screen.good(f'server {server["id"]} is resized')
            self._show_devices(server, facts)

    # Second act

    def switch(self):
        with self._screen.step('The GPUs are behind NVSwitches') as facts:
            for server in self.api.get_servers():
                self._delete_server(server)
            self._fabric = self.useFixture(fabric.Fabric(self.connection))
            self.flags(fabric_manager=self._fabric.option, group='nova_accel')
            self._run_periodics()
            self._screen.show('Fabric Manager and its command fmpm are '
                              'stand-ins.')
            self._screen.show(f'fabric_manager = {self._fabric.option}')
            self._show_calls(facts)

    def join(self, count):
        with self._screen.step(f'{count} GPUs that a partition joins'
                               ) as facts:
            path = self.gpu_profile(f'h100-joined-{count}', count, numa='off',
                                    affinity=[{'same': 'link_domain'}])
            self._screen.show(path.read_text())
            server = self.boot(self.flavor(path.stem))
            self._show_calls(facts)
            self._screen.good(f'server {server["id"]} is ACTIVE')
            self._show_partitions(facts)
        return server

    def fail_to_join(self, count):
        with self._screen.step('A partition whose links fail') as facts:
            self._fabric.manager.set(bad_links=list(fabric.MODULES))
            self._heard.clear()
            server = self.boot(self.flavor(f'h100-joined-{count}'),
                               state='ERROR')
            facts['reasons'] = [line for line in self._heard
                                if 'fmReturn' in line]
            facts['fault'] = server['fault']['message'].strip()
            self._show_calls(facts)
            for line in facts['reasons']:
                self._screen.show(f'nova-compute: {line}')
            self._screen.bad(f'server {server["id"]} is in ERROR: '
                             f'{facts["fault"]}')
            self._delete_server(server)

    def leave(self, server):
        with self._screen.step('A server is deleted') as facts:
            self._delete_server(server)
            self._run_periodics()
            self._show_calls(facts)
            self._show_partitions(facts)

    def _show_calls(self, facts):
        """Show the new calls of fmpm, equal ones once."""
        calls = self._fabric.manager.log()
        facts['calls'] = list(dict.fromkeys(
            ' '.join(['fmpm', *words]) for words in calls[self._calls:]))
        self._calls = len(calls)
        self._screen.show('\n'.join(facts['calls']))

    def _show_partitions(self, facts):
        facts['active'] = [sorted(cards) for cards in self._fabric.active()]
        for cards in facts['active']:
            self._screen.good(f'Active partition: {", ".join(cards)}')
        if not facts['active']:
            self._screen.good('No partition is active')

    def _show_devices(self, server, facts):
        facts['server'] = server['id']
        facts['allocations'] = self.as_placement_has_it(server)
        for name, resources in facts['allocations'].items():
            self._screen.show(f'Placement: {name}: {_pairs(resources)}')
        domain = etree.fromstring(self.domain(server).defined_xml)
        facts['hostdevs'] = [_text(hostdev) for hostdev in
                             domain.findall('./devices/hostdev')]
        for xml in facts['hostdevs']:
            self._screen.show(xml)


class _Listener(logging.Handler):
    """Collects log lines of nova_accel in some services."""

    def __init__(self, lines):
        super().__init__(logging.INFO)
        self._lines = lines

    def emit(self, record):
        if '.scheduler' in record.name or '.compute.faults' in record.name:
            self._lines.append(record.getMessage())


def _pairs(amounts) -> str:
    return ', '.join(f'{name}: {amount}' for name, amount in amounts.items())


def _text(element) -> str:
    etree.indent(element)
    return etree.tostring(element, encoding='unicode').strip()
