# SPDX-License-Identifier: Apache-2.0
"""The Grafana dashboard, alerts and rules, with a real Prometheus.

It scrapes what ``nova-accel metrics`` and ``openstack accel metrics`` print.
"""

import contextlib
import http.server
import io
import json
import re
import socket
import subprocess
import threading
import time
from urllib import parse
from urllib import request

import fixtures
import yaml

from nova_accel import exposition
from nova_accel.cmd import collector
from nova_accel.core import model
from nova_accel.core.placement import providers
from nova_accel.osc import provider
from tests import debian
from tests.functional import cloud
from tests.functional import test_openstack

_DASHBOARD = json.loads(
    (cloud.ROOT / 'contrib/grafana/nova-accel.json').read_text())
_ETC = cloud.ROOT / 'etc' / 'nova_accel'
_RULES = [_ETC / 'prometheus-alerts.yaml',
          _ETC / 'cloudkitty' / 'prometheus-rules.yaml']

#: Grafana's variables, and a step that is short enough for this test.
_VALUES = {'$resource_class': '.*', '$instance': '.*', '$__range': '1h',
           ':1m]': ':1s]'}


def _queries():
    """Yield title and PromQL of each query of the dashboard."""
    for panel in _DASHBOARD['panels']:
        for target in panel.get('targets', ()):
            text = target['expr']
            for name, value in _VALUES.items():
                text = text.replace(name, value)
            yield panel['title'], text
    for variable in _DASHBOARD['templating']['list']:
        if variable['type'] == 'query':
            metric, label = re.fullmatch(
                r'label_values\((\w+), (\w+)\)',
                variable['query']['query']).groups()
            yield variable['label'], f'count by ({label}) ({metric})'


class Prometheus(fixtures.Fixture):
    """A Prometheus that scrapes texts every second.

    :param texts: by instance
    """

    def __init__(self, program, texts):
        super().__init__()
        self._program = program
        self._texts = texts

    def _setUp(self):
        folder = self.useFixture(fixtures.TempDir())
        with socket.create_server(('127.0.0.1', 0)) as free:
            address = f'127.0.0.1:{free.getsockname()[1]}'
        self._url = f'http://{address}/api/v1/'
        with open(folder.join('prometheus.yml'), 'w') as file:
            yaml.safe_dump(self._configuration(), file)
        self._log = folder.join('log')
        with open(self._log, 'w') as log:
            process = subprocess.Popen([
                self._program, '--config.file', file.name,
                '--storage.tsdb.path', folder.join('data'),
                '--web.listen-address', address], stdout=log, stderr=log)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)

    def _configuration(self):
        return {
            'global': {f'{what}_interval': '1s'
                       for what in ('scrape', 'evaluation')},
            'rule_files': list(map(str, _RULES)),
            'scrape_configs': [{'job_name': 'node', 'static_configs': [{
                'targets': [self._serve(text)],
                'labels': {'instance': name}}
                for name, text in self._texts.items()]}]}

    def _serve(self, text):
        """Serve a text as node_exporter does, and return the address."""
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.send_header('Content-Type', 'text/plain; version=0.0.4')
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *arguments):
                pass
        server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return f'127.0.0.1:{server.server_port}'

    def get(self, path, **query):
        """Return the data of an answer of Prometheus's HTTP API."""
        with request.urlopen(
                f'{self._url}{path}?{parse.urlencode(query)}') as answer:
            return json.load(answer)['data']

    def ask(self, text):
        """Return the values of an instant query, by their labels."""
        return {tuple(sorted(series['metric'].items())): float(
            series['value'][1])
            for series in self.get('query', query=text)['result']}

    def wait(self):
        """Wait until each text was scraped twice."""
        end = time.monotonic() + 60 * cloud.PATIENCE
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                scraped = self.ask('sum_over_time(up[1m])')
                if (len(scraped) == len(self._texts)
                        and min(scraped.values()) >= 2):
                    return
            time.sleep(0.2)
        with open(self._log) as log:
            raise AssertionError(log.read()[-4000:])


class DashboardTest(test_openstack.OpenstackCase):

    def setUp(self):
        # The harness replaces functions of os that this needs.
        program = debian.program('prometheus')
        if not program:
            self.skipTest('there is no Prometheus, and apt-get cannot '
                          'fetch it')
        super().setUp()
        for name in ('compute1', 'compute2'):
            self.start_compute(name)
        self.boot(self.one, host='compute1')
        self.gpu_profile('three', 3)
        self.boot(self.flavor('three'), state='ERROR')
        free = [address for address, row in self.devices(
            '--host', 'compute2').items()]
        self.openstack.run('accel device set', f'compute2/{free[0]}',
                           '--drain', 'fan')
        for address, state in zip(free[1:], (
                model.WithheldState.UNHEALTHY, model.WithheldState.CLEANING),
                strict=False):
            self.withhold(f'compute2/{address}', providers.WITHHELD[state])
        self.prometheus = self.useFixture(Prometheus(program, {
            # Without libvirt, there is no audit.
            'compute1': self.node('compute1', None),
            'compute2': self.node('compute2', []),
            'controller': self.openstack.run(
                'accel metrics', '--profile-dir', self.profiles, output='')}))
        self.prometheus.wait()

    def withhold(self, name, trait):
        """Do what nova-compute does with a device that has a state."""
        client = self.openstack.cloud.nova_accel
        client.put(f'/traits/{trait}', {})
        for units in client.device(name).regions:
            provider.change_traits(client, units.provider,
                                   lambda traits: traits | {trait})
            provider.reserve(client, units, True)

    def node(self, name, findings):
        """Return what ``nova-accel metrics`` prints."""
        text = io.StringIO()
        exposition.write(collector.Collector(collector.Reading(
            time.time(), model.Host(), 0,
            collector.read_node(self.ask_placement, name), findings)),
            None, text)
        return text.getvalue()

    def test_all_expressions(self):
        self.every_query_has_a_result()
        self.alerts_are_those_of_the_state()

    def every_query_has_a_result(self):
        queries = list(_queries())
        self.assertGreater(len(queries), 20)
        self.assertEqual([], [(title, text) for title, text in queries
                              if not self.prometheus.ask(text)])
        self.assertEqual(
            {'Units': 8, 'Held': 1 / 8, 'Free': 4, 'Withheld': 3,
             'Devices with a fault': 1, 'Devices to be cleaned': 1,
             'Servers being built': 0, 'Audit findings': 0},
            {panel['title']: value for panel, (_title, text) in zip(
                (panel for panel in _DASHBOARD['panels']
                 if panel['type'] == 'stat'), queries, strict=False)
             for value in self.prometheus.ask(text).values()})

    def alerts_are_those_of_the_state(self):
        found = {rule.get('alert', rule.get('record')): bool(
            self.prometheus.ask(rule['expr']))
            for path in _RULES
            for group in yaml.safe_load(path.read_text())['groups']
            for rule in group['rules']}
        self.assertEqual(
            {'NovaAccelMetricsFailed', 'NovaAccelDeviceFailed',
             'nova_accel_rated_units'},
            {name for name, has_result in found.items() if has_result})
        self.assertEqual(set(found), {
            rule['name'] for group in self.prometheus.get('rules')['groups']
            for rule in group['rules']})
