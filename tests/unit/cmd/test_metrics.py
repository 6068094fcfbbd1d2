# SPDX-License-Identifier: Apache-2.0
"""``nova-accel metrics``, with a simulated Placement and libvirt."""

import collections
import datetime
import json
import pathlib
import re
import socket
import sys
import time
from urllib import parse

from prometheus_client import parser
import pytest
import yaml

from nova_accel.cmd import collector
from nova_accel.cmd import placement as placements
from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.assignment import consistency
from nova_accel.core.placement import drain
from nova_accel.core.placement import listing
from nova_accel.core.placement import providers
from nova_accel.osc import collector as profiles
from nova_accel.osc import fleet
from tests.unit import build
from tests.unit.cmd import test_check

ROOT = pathlib.Path(__file__).parent.parent.parent.parent
SERVER, OTHER = test_check.SERVER, '7d3f6a0e-55ab-4f52-9a44-0c6d6a6a11aa'
FIRST, SECOND = '0000:43:00.0', '0000:44:00.0'
CARD = '0000:81:00.0'
CONF = f"""
[nova_accel]
sysfs_root = {build.DATA}/hosts/l1-8gpu.json
device_spec = {{"address": {{"bus": "4[34]"}}, "resource_class": "GPU"}}
"""
SINCE = datetime.datetime(2026, 11, 20, 8, tzinfo=datetime.UTC)


class Placement:
    """Placement with the devices of one compute node."""

    def __init__(self):
        self.name = 'compute1'
        self.traits = []
        self.devices = {}
        self.asked = collections.Counter()
        self.add(FIRST)
        self.add(SECOND)

    def add(self, address, resource_class='CUSTOM_GPU', total=1, reserved=0,
            traits=(), **held):
        """Add a device, or replace it.

        :param held: units by consumer
        """
        uuid = naming.provider_uuid(build.ROOT, address)
        self.devices[uuid] = (address, naming.unit_class(resource_class),
                              total, reserved, traits, held)
        return uuid

    def __call__(self, path):
        self.asked[path] += 1
        path, _mark, query = path.partition('?')
        return self._answer(path.strip('/').split('/'),
                            dict(parse.parse_qsl(query)))

    def _answer(self, path, query):
        match path:
            case ['traits']:
                return {'traits': [naming.MARKER_TRAIT]}
            case ['resource_providers'] if 'name' in query:
                return {'resource_providers': [self._root()] * (
                    query['name'] == self.name)}
            case ['resource_providers']:
                assert query == {'in_tree': build.ROOT,
                                 'required': naming.MARKER_TRAIT}
                return {'resource_providers': [
                    self._provider(uuid, f'{self.name}_accel_{device[0]}')
                    for uuid, device in self.devices.items()]}
            case ['allocation_candidates']:
                assert query == {'in_tree': build.ROOT,
                                 'resources': 'CUSTOM_NOVA_ACCEL_HOST:1'}
                return {'provider_summaries': {
                    build.ROOT: {'traits': self.traits, 'resources': {}},
                    **{uuid: self._summary(*device)
                       for uuid, device in self.devices.items()}}}
            case ['resource_providers', uuid, 'inventories', name]:
                _address, units, total, reserved, *_rest = self.devices[uuid]
                assert name == units
                return {'total': total, 'reserved': reserved}
            case ['resource_providers', uuid, 'allocations']:
                return {'allocations': {
                    consumer: {'resources': {self.devices[uuid][1]: amount}}
                    for consumer, amount in self.devices[uuid][-1].items()}}
            case ['allocations', consumer]:
                return {'allocations': {},
                        'project_id': f'project of {consumer[0]}'}
        raise AssertionError(path)

    def _root(self):
        return {**self._provider(build.ROOT, self.name),
                'parent_provider_uuid': None}

    def _provider(self, uuid, name):
        return {'uuid': uuid, 'name': name,
                'parent_provider_uuid': build.ROOT,
                'root_provider_uuid': build.ROOT}

    def _summary(self, _address, units, total, reserved, traits, held):
        return {'traits': [naming.MARKER_TRAIT, *traits], 'resources': {
            units: {'capacity': total - reserved,
                    'used': sum(held.values())}}}


@pytest.fixture
def placement(monkeypatch):
    found = Placement()
    monkeypatch.setattr(placements, 'connect', lambda conf: found)
    return found


@pytest.fixture
def libvirt(monkeypatch):
    module = test_check.Libvirt()
    monkeypatch.setitem(sys.modules, 'libvirt', module)
    return module


@pytest.fixture
def metrics(run, placement, libvirt):
    """Call the command; return exit code, samples and stderr."""
    def call(*arguments, conf=CONF):
        code, out, err = run('metrics', *arguments, conf=conf)
        return code, samples(out), err
    return call


def samples(text):
    """Return the value of each sample, by its name and labels."""
    found = [(sample.name + ''.join(
        f' {key}={value}' for key, value in sorted(sample.labels.items())
        if value),
        sample.value)
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples]
    assert len(dict(found)) == len(found)
    return dict(found)


def only(found, name):
    """Return the samples of one metric, by their labels."""
    return {labels: value for text, value in found.items()
            for metric, _space, labels in [text.partition(' ')]
            if metric == f'nova_accel_{name}'}


def test_idle_host(metrics):
    before = int(time.time())
    code, found, err = metrics()
    assert (code, err) == (0, '')
    assert before <= found.pop(
        'nova_accel_last_run_timestamp_seconds') <= time.time()
    assert found == {
        'nova_accel_collector_success collector=sysfs': 1,
        'nova_accel_collector_success collector=placement': 1,
        'nova_accel_collector_success collector=audit': 1,
        'nova_accel_refused_functions': 0,
        'nova_accel_configuration_problems': 0,
        'nova_accel_compute_node_info compute_node=compute1': 1,
        'nova_accel_units resource_class=CUSTOM_GPU state=free': 2,
        'nova_accel_units resource_class=CUSTOM_GPU state=held': 0,
        'nova_accel_units resource_class=CUSTOM_GPU state=withheld': 0,
        'nova_accel_audit_findings passing=false': 0,
        'nova_accel_audit_findings passing=true': 0}


def test_server_and_project_of_held_devices(metrics, placement):
    placement.add(FIRST, **{SERVER: 1})
    placement.add(CARD, 'VGPU', 4, **{SERVER: 1, OTHER: 2})
    found = metrics()[1]
    mine, others = (
        f'project=project of {server[0]} resource_class={{}} server={server}'
        for server in (SERVER, OTHER))
    assert only(found, 'device_allocation_info') == {
        f'address={FIRST} {mine.format("CUSTOM_GPU")}': 1,
        f'address={CARD} {mine.format("VGPU")}': 1,
        f'address={CARD} {others.format("VGPU")}': 1}
    assert only(found, 'project_units') == {
        'project=project of 0 resource_class=CUSTOM_GPU': 1,
        'project=project of 0 resource_class=VGPU': 1,
        'project=project of 7 resource_class=VGPU': 2}


@pytest.mark.parametrize('total, reserved, held, states', [
    (1, 0, 0, (1, 0, 0)), (1, 0, 1, (0, 1, 0)),
    # A withheld unit that a server still holds counts as held.
    (1, 1, 1, (0, 1, 0)), (1, 1, 0, (0, 0, 1)),
    (4, 2, 1, (1, 1, 2)), (4, 2, 3, (0, 3, 1)),
    # Units disappeared, so more units are allocated than exist.
    (2, 2, 3, (0, 3, 0))])
def test_each_unit_has_one_state(metrics, placement, total, reserved, held,
                                 states):
    placement.add(CARD, 'VGPU', total, reserved,
                  [providers.MISSING] * bool(reserved),
                  **{SERVER: held} if held else {})
    found = only(metrics()[1], 'units')
    assert tuple(found[f'resource_class=VGPU state={state}']
                 for state in ('free', 'held', 'withheld')) == states


def test_withheld_units_count_for_each_reason(metrics, placement):
    placement.add(FIRST, reserved=1, **{SERVER: 1}, traits=[
        providers.MISSING, providers.WITHHELD[model.WithheldState.RESET_FAILED]
    ])
    placement.add(SECOND, reserved=1)
    placement.add(CARD, 'VGPU', 4, 3, [providers.DISPUTED])
    assert only(metrics()[1], 'device_withheld_units') == {
        f'address={at} reason={reason} resource_class={name}': amount
        for at, name, reason, amount in (
            (FIRST, 'CUSTOM_GPU', 'missing', 1),
            (FIRST, 'CUSTOM_GPU', 'reset failed', 1),
            (SECOND, 'CUSTOM_GPU', 'reserved', 1),
            (CARD, 'VGPU', 'held without an allocation', 3))}


@pytest.mark.parametrize('of_device, of_host, since, reason', [
    (0, None, 0, 'fan'), (None, 0, 0, 'move'), (0, 5, 0, 'fan'),
    (5, 0, 0, 'move')])
def test_device_is_drained_since_the_older_drain(
        metrics, placement, of_device, of_host, since, reason):
    def traits(days, text):
        return [] if days is None else [drain.TRAIT, drain.Drain(
            SINCE + datetime.timedelta(days), text).trait]
    placement.devices.clear()
    placement.add(FIRST, reserved=1, traits=traits(of_device, 'Fan!'))
    placement.traits = traits(of_host, 'move')
    assert only(metrics()[1], 'device_drained_timestamp_seconds') == {
        f'address={FIRST} reason={reason}':
            (SINCE + datetime.timedelta(since)).timestamp()}


def test_findings_are_counted_by_whether_they_pass(metrics, placement,
                                                   libvirt):
    first = placement.add(FIRST)
    placement.add(SECOND, **{OTHER: 1})
    libvirt.domains.append(test_check.Domain(
        test_check.hostdev(FIRST, first)))
    assert only(metrics()[1], 'audit_findings') == {
        'passing=false': 1, 'passing=true': 1}


def test_refused_functions_and_problems(metrics):
    code, found, err = metrics(conf=CONF + (
        'device_spec = {"colour": "green"}\n'
        'device_spec = {"address": "0000:41:00.0"}\n'
        'link_domains = /nowhere.yaml\n'))
    assert code == 0
    assert found['nova_accel_configuration_problems'] == 2
    assert found['nova_accel_refused_functions'] == 1
    assert "does not know the key 'colour'" in err
    assert '/nowhere.yaml' in err


def test_silent_fabric_manager_is_a_problem(metrics, tmp_path):
    manager, conf = test_check.fabric(tmp_path, CONF)
    manager.stop()
    _code, found, err = metrics(conf=conf)
    assert found['nova_accel_configuration_problems'] == 1
    assert 'fmpm: list partitions: ' in err


def successes(found):
    return {labels.removeprefix('collector='): value
            for labels, value in only(found, 'collector_success').items()}


@pytest.mark.parametrize('hostname, arguments', [
    ('compute1', ()), ('other', ('--host', 'compute1'))])
def test_other_metrics_are_exported_without_libvirt(
        metrics, placement, libvirt, monkeypatch, hostname, arguments):
    def refuse(uri):
        raise libvirt.libvirtError('Failed to connect socket')
    monkeypatch.setattr(libvirt, 'openReadOnly', refuse)
    monkeypatch.setattr(socket, 'gethostname', lambda: hostname)
    held = placement.add(FIRST, **{SERVER: 1})
    code, found, err = metrics(*arguments)
    assert (code, err.count('\n')) == (0, 1)
    assert err.startswith('nova-accel: libvirt: cannot be queried: Failed')
    assert successes(found) == {'sysfs': 1, 'placement': 1, 'audit': 0}
    assert [path for path in placement.asked if 'allocations' in path] == [
        f'/resource_providers/{held}/allocations', f'/allocations/{SERVER}']
    assert only(found, 'audit_findings') == {}
    assert found['nova_accel_units resource_class=CUSTOM_GPU state=held'] == 1


def test_other_metrics_are_exported_without_sysfs(metrics):
    code, found, err = metrics('--sysfs-root', '/nowhere', '--host',
                               'compute1')
    assert code == 0
    assert err.startswith("nova-accel: sysfs_root '/nowhere'")
    assert successes(found) == {'sysfs': 0, 'placement': 1, 'audit': 0}
    assert not only(found, 'refused_functions')
    assert only(found, 'units')


@pytest.mark.parametrize('thing, name', [
    (placements, 'connect'), (Placement, '_answer')])
def test_file_without_placement_has_the_failure(
        metrics, tmp_path, monkeypatch, thing, name):
    def fail(*_arguments):
        raise errors.AccelError('Placement', 'does not answer')
    monkeypatch.setattr(thing, name, fail)
    file = tmp_path / 'accel.prom'
    code, out, err = metrics('--textfile', str(file))
    assert (code, out) == (1, {})
    assert 'nova-accel: Placement: does not answer\n' in err
    found = samples(file.read_text())
    assert successes(found) == {'sysfs': 1, 'placement': 0, 'audit': 0}
    assert not only(found, 'units')


def test_name_of_the_compute_node(metrics, placement, libvirt, monkeypatch):
    placement.name = 'ironclad'
    code, found, err = metrics()
    assert (code, successes(found)['placement']) == (1, 0)
    assert 'compute node compute1: Placement has no' in err and '--host' in err
    assert metrics('--host', 'ironclad')[0] == 0
    monkeypatch.setattr(libvirt, 'getHostname', lambda: 'ironclad')
    assert metrics()[0] == 0


def test_no_request_to_placement_is_repeated(metrics, placement):
    placement.add(FIRST, **{SERVER: 1})
    placement.add(CARD, 'VGPU', 4, **{SERVER: 1, OTHER: 2})
    metrics()
    assert set(placement.asked.values()) == {1}
    # Compute node, trait, tree, candidates; allocations and consumers of each.
    assert len(placement.asked) == 4 + 3 + 2


def test_textfile_is_replaced(metrics, tmp_path):
    folder = tmp_path / 'textfile'
    folder.mkdir()
    file = folder / 'accel.prom'
    file.write_text('old')
    with file.open() as before:
        assert metrics('--textfile', str(file)) == (0, {}, '')
        assert before.read() == 'old'
    assert only(samples(file.read_text()), 'units')
    assert list(folder.iterdir()) == [file]


def test_textfile_that_cannot_be_written(metrics):
    code, found, err = metrics('--textfile', '/nowhere/accel.prom')
    assert (code, found) == (1, {})
    assert err.startswith('nova-accel: [Errno 2]') and err.count('\n') == 1


def test_prometheus_client_is_optional(run, placement, libvirt, tmp_path,
                                       monkeypatch):
    monkeypatch.setitem(sys.modules, 'prometheus_client', None)
    file = tmp_path / 'accel.prom'
    code, out, err = run('metrics', '--textfile', str(file), conf=CONF)
    assert (code, out, file.exists()) == (1, '', False)
    assert err.startswith('nova-accel: prometheus_client: cannot be loaded')
    assert 'install the extra "metrics"' in err


def every():
    """Return the labels of every metric of both commands, by its name."""
    node = collector.Collector(collector.Reading(
        0, model.Host(), 0, collector.Node(
            listing.Host('', 'compute1', ()), {}, {}, {}),
        [consistency.Finding('', '', '')]))
    return {family.name: set(family._labelnames)
            for metrics in (node, profiles.Collector(0, (), {}, frozenset()))
            for family in metrics.collect()}


def test_all_metrics_are_documented_with_their_labels():
    text = (ROOT / 'doc/source/admin/metrics.rst').read_text()
    rows = re.findall(r'^   \* - ``(nova_accel_\w+)``\n     - (.*)$', text,
                      re.M)
    assert {name: set(re.findall(r'``(\w+)``', labels))
            for name, labels in rows} == every()


def alerts():
    """Return the expressions of the alerts."""
    rules = yaml.safe_load(
        (ROOT / 'etc/nova_accel/prometheus-alerts.yaml').read_text())
    return [rule['expr'] for group in rules['groups']
            for rule in group['rules']]


def dashboard():
    """Return the expressions of the dashboard."""
    return [target['expr'] for panel in json.loads(
        (ROOT / 'contrib/grafana/nova-accel.json').read_text())['panels']
        for target in panel.get('targets', ())]


@pytest.mark.parametrize('expressions', [alerts(), dashboard()])
def test_expressions_use_metrics_and_labels_that_exist(expressions):
    assert expressions
    for expression in expressions:
        used = re.findall(r'(nova_accel_\w+)(?:\{(.*?)\})?', expression)
        assert used
        for name, conditions in used:
            assert {'instance', *every()[name]} >= set(
                re.findall(r'(\w+)[!=]', conditions))


@pytest.mark.parametrize('state, expressions', [
    (fleet.State.FAULT, alerts()), (fleet.State.FAULT, dashboard()),
    (fleet.State.CLEANING, dashboard())])
def test_expressions_have_all_reasons_of_a_state(state, expressions):
    wanted = {reason for reason in (*listing.REASONS.values(), 'dirty')
              if fleet.state([reason]) == state}
    found = {frozenset(reasons.split('|')) for expression in expressions
             for reasons in re.findall('reason=~"(.*?)"', expression)}
    assert frozenset(wanted) in found


def test_dashboard_has_all_metrics():
    used = set(re.findall(r'nova_accel_\w+', ' '.join(dashboard())))
    assert every().keys() - used == {
        # They are for queries with the metrics of others.
        'nova_accel_compute_node_info', 'nova_accel_device_allocation_info'}
