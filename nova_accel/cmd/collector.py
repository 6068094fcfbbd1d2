# SPDX-License-Identifier: Apache-2.0
"""The metrics of a compute node, as prometheus_client collects them.

Source: Prometheus documentation, "Metric and label naming" and "Writing
exporters": base units, no ``_total`` except for counters, ``_info`` for
metrics that are 1, and nothing for what is not known.
"""

import collections
import collections.abc
import dataclasses

from nova_accel import exposition
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.assignment import consistency
from nova_accel.core.placement import drain
from nova_accel.core.placement import listing
from nova_accel.core.placement import queries

_REGION = ('address', 'region', 'resource_class')

_gauge = exposition.gauge


@dataclasses.dataclass(frozen=True)
class Node:
    """What Placement tells of a compute node.

    :param inventories: those of units that are withheld, by provider
    :param allocations: by provider that has any, by consumer
    :param projects: by consumer
    """

    host: listing.Host
    inventories: collections.abc.Mapping[str, listing.Json]
    allocations: collections.abc.Mapping[
        str, collections.abc.Mapping[str, listing.Json]]
    projects: collections.abc.Mapping[str, str]

    def withheld(self, units: listing.Units) -> int:
        """Return how many units are neither free nor held."""
        if units.provider not in self.inventories:
            return 0
        total: int = self.inventories[units.provider]['total']
        return max(0, total - units.used - units.free)

    @property
    def holders(self) -> collections.abc.Iterator[
            tuple[listing.Device, listing.Units, str, int]]:
        """Each Region with a consumer, and how many units that has."""
        for device, units in self.host.units:
            name = naming.unit_class(units.resource_class)
            for consumer, allocation in self.allocations.get(
                    units.provider, {}).items():
                if amount := allocation['resources'].get(name):
                    yield device, units, consumer, amount


@dataclasses.dataclass(frozen=True)
class Reading:
    """All that one run of the command has read.

    :param time: when, in seconds since the Unix epoch
    :param machine: the host that it runs on, None if it cannot be read
    :param problems: number of errors in the configuration and in what was
        read of the machine
    :param node: None if Placement cannot be queried
    :param findings: those of the audit, None if there was none
    """

    time: float
    machine: model.Host | None
    problems: int
    node: Node | None
    findings: collections.abc.Collection[consistency.Finding] | None


def read_node(get: queries.Get, name: str) -> Node:
    """Read a compute node from Placement.

    :raises errors.AccelError: if Placement has none of this name, or does not
        answer
    """
    host = queries.host(get, name)
    found = [units for _device, units in host.units]
    allocations = {units.provider: queries.allocations(get, units.provider)
                   for units in found if units.used}
    return Node(
        host, {units.provider: queries.inventory(get, units)
               for units in found if units.reasons}, allocations,
        {consumer: queries.project(get, consumer)
         for consumers in allocations.values() for consumer in consumers})


class Collector:
    """Collects the metrics of one Reading."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def collect(self) -> collections.abc.Iterator[exposition.Metric]:
        """Yield the metrics of what could be read."""
        reading = self._reading
        yield from _of_run(reading)
        if reading.machine is not None:
            yield from _of_machine(reading.machine, reading.problems)
        if reading.node is not None:
            yield from _of_classes(reading.node)
            yield from _of_devices(reading.node)
        if reading.findings is not None:
            yield _of_audit(reading.findings)


def _of_run(reading: Reading) -> collections.abc.Iterator[exposition.Metric]:
    yield _gauge('last_run_timestamp_seconds',
                 'When nova-accel metrics ran, in Unix time.', (),
                 [(reading.time,)])
    yield _gauge(
        'collector_success', 'Whether the last read worked (1) or not (0).',
        ('collector',), [
            ('sysfs', reading.machine is not None),
            ('placement', reading.node is not None),
            ('audit', reading.findings is not None)])


def _of_machine(machine: model.Host, problems: int,
                ) -> collections.abc.Iterator[exposition.Metric]:
    yield _gauge('refused_functions', 'PCI functions that an entry of '
                 'device_spec names and that are not offered.', (),
                 [(len(machine.refusals),)])
    yield _gauge('configuration_problems', 'Errors in device_spec and '
                 'link_domains, what contradicts the fabric manager, and '
                 'facts of the host that cannot be read.',
                 (), [(problems,)])


def _of_classes(node: Node) -> collections.abc.Iterator[exposition.Metric]:
    yield _gauge('compute_node_info', 'The compute node of this host.',
                 ('compute_node',), [(node.host.name, 1)])
    states = collections.Counter[tuple[str, str]]()
    projects = collections.Counter[tuple[str, str]]()
    for _device, units in node.host.units:
        # Zeros stay, so that each class has all states.
        states.update({(units.resource_class, state): amount
                       for state, amount in (
                           ('free', units.free), ('held', units.used),
                           ('withheld', node.withheld(units)))})
    for _device, units, consumer, amount in node.holders:
        projects[node.projects[consumer], units.resource_class] += amount
    yield _gauge('units', 'Units of devices: free, held by a server, or '
                 'withheld from all servers.', ('resource_class', 'state'),
                 [(*labels, amount) for labels, amount in states.items()])
    yield _gauge('project_units', 'Units of devices that the servers of a '
                 'project hold.', ('project', 'resource_class'),
                 [(*labels, amount) for labels, amount in projects.items()])


def _of_devices(node: Node) -> collections.abc.Iterator[exposition.Metric]:
    yield _gauge(
        'device_allocation_info', 'Which server has units of a device.',
        (*_REGION, 'server', 'project'), [
            (*_labels(device, units), consumer, node.projects[consumer], 1)
            for device, units, consumer, _amount in node.holders])
    yield _gauge(
        'device_withheld_units', 'Units that no new server gets, also those '
        'that a server still holds, once for each reason.',
        (*_REGION, 'reason'), [
            (*_labels(device, units), reason,
             node.inventories[units.provider]['reserved'])
            for device, units in node.host.units for reason in units.reasons])
    yield _gauge(
        'device_drained_timestamp_seconds', 'Since when a device is drained, '
        'in Unix time.', ('address', 'reason'), [
            (device.address, found.reason, found.since.timestamp())
            for device in node.host.devices
            if (found := _drain(node.host, device))])


def _of_audit(findings: collections.abc.Iterable[consistency.Finding],
              ) -> exposition.Metric:
    counts = collections.Counter(finding.passing for finding in findings)
    return _gauge(
        'audit_findings', 'Disagreements of sysfs, Placement and libvirt. An '
        'operation in progress can explain those that are passing.',
        ('passing',), [(str(passing).lower(), counts[passing])
                       for passing in (False, True)])


def _labels(device: listing.Device, units: listing.Units,
            ) -> tuple[str, str, str]:
    """Return the values of the labels of a Region."""
    return device.address, units.name, units.resource_class


def _drain(host: listing.Host, device: listing.Device) -> drain.Drain | None:
    """Return the older drain, of a device or of its host."""
    return min(filter(None, (device.drained, host.drained)), default=None)
