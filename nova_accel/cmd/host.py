# SPDX-License-Identifier: Apache-2.0
"""``nova-accel host``: the devices of a host, offered and refused."""

import argparse
import collections.abc
import gzip
import json
import os
import pathlib
import socket
import typing

from oslo_config import cfg

from nova_accel import conf as nova_conf
from nova_accel import nova_claims
from nova_accel.cmd import drawing
from nova_accel.cmd import health
from nova_accel.cmd import main
from nova_accel.cmd import text
from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core.assignment import consistency
from nova_accel.core.device_spec import discovery
from nova_accel.core.device_spec import reset_methods
from nova_accel.core.device_spec import spec_entry
from nova_accel.core.device_spec import strict
from nova_accel.core.device_spec import suggestion
from nova_accel.core.fabric import definition
from nova_accel.core.fabric import located
from nova_accel.host import fabric
from nova_accel.host import loader
from nova_accel.host import operations
from nova_accel.host import reader
from nova_accel.host import recorder
from nova_accel.host import tree as trees
from nova_accel.host import trust

_OPTION = '[nova_accel] device_spec'
#: Debian and Ubuntu also have nova-compute.conf, read after nova.conf.
SERVICE = 'nova-compute'


class ShowHost(text.ShowOne):
    """Show devices, regions and topology, and why devices are refused.

    It also reads the health of devices, and shows which ones nova-compute
    withholds for it. With --isolation strict, it shows which ones nova-compute
    would refuse with this option.

    If a fabric manager is configured, it also asks for its partitions, and
    shows them beside the file of link domains.

    It exits with 1 if an entry, the file of link domains or fabric_manager is
    invalid.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        add_root(parser)
        add_isolation(parser)
        parser.add_argument(
            '--device-spec', action='append', metavar='JSON',
            help='try this entry instead of those in nova.conf; can be '
                 'repeated')
        parser.add_argument(
            '--link-domains', metavar='FILE',
            help='try this file instead of that in nova.conf')
        parser.add_argument(
            '--fabric-manager', metavar='JSON',
            help='try this fabric_manager instead of that in nova.conf')
        parser.add_argument(
            '--all', action='store_true',
            help='also show functions that are not accelerators, as text')
        parser.add_argument(
            '--strict', action='store_true',
            help='exit with 1 also if a function that an entry names is '
                 'refused or withheld, or an entry names no device')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> text.Output:
        conf = configuration(self.app, parsed_args)
        root = _root(parsed_args, conf)
        texts, option = ((parsed_args.device_spec, '--device-spec')
                         if parsed_args.device_spec else
                         (conf.nova_accel.device_spec, _OPTION))
        entries, broken = reader.parse(texts, option)
        tree = trees.open_tree(root)
        kinds = loader.open_all(tree)
        file, unreadable = reader.parse_links(
            parsed_args.link_domains or conf.nova_accel.link_domains)
        switches, misconfigured = _switches(tree, conf,
                                            parsed_args.fabric_manager)
        unusable = [*broken, *unreadable, *misconfigured,
                    *nova_conf.broken_commands(conf)]
        decide = _read_host(tree, conf, file, kinds, switches.locate)
        found = (suggestion.Suggestions() if texts else
                 _suggest(decide([]), kinds, decide))
        # Without entries, look at the devices that are suggested.
        meant = entries if texts else _parse(entry.item
                                              for entry in found.entries)
        planned = decide(meant)
        reading = health.read(tree, planned, health.offered(planned), kinds,
                              conf)
        states: list[reader.State] = [reading.withheld, switches.withheld]
        host = decide(entries, states)
        withheld = [refusal for refusal in decide(meant, states).refusals
                    if refusal.is_withheld]
        switched = switches.locate(host.functions)
        problems = [*map(str, unusable), *host.problems, *reading.notes]
        warnings = [*map(str, _unmatched(entries, host)),
                    *drawing.refused(host)]
        self._drawn = [
            *drawing.draw(host, root, problems, parsed_args.all,
                          reading.source, switched, file),
            *drawing.suggest(found, () if texts else withheld)]
        for warning in warnings:
            self.app.LOG.warning(warning)
        self.code = int(bool(unusable or (parsed_args.strict and warnings)))
        return self.dict2columns(as_data(
            host, withheld, reading.source, problems, warnings, found,
            switched, file))

    def lines(self, names: collections.abc.Sequence[str],
              data: collections.abc.Iterable[typing.Any]) -> list[str]:
        return self._drawn


class CheckHost(text.Findings):
    """Compare what libvirt, Placement and sysfs say of this host's devices.

    If a fabric manager is configured, also ask whether it answers, and agrees
    with nova.conf and the file of link domains.

    It exits with 1 if they disagree, and with 2 if libvirt or Placement cannot
    be queried.
    """

    columns = (*text.Findings.columns, 'Provider', 'Withheld', 'Passing')

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        add_host(parser)
        return parser

    def run(self, parsed_args: argparse.Namespace) -> int:
        try:
            return super().run(parsed_args)
        except (errors.AccelError, cfg.Error, OSError) as error:
            self.app.LOG.error(error)
            return 2

    def take_action(self, parsed_args: argparse.Namespace) -> text.Output:
        # keystoneauth1 is slow to import, and few commands need it.
        from nova_accel.cmd import check
        from nova_accel.cmd import placement
        conf = self.app.configuration(SERVICE)
        host, problems = read(parsed_args, conf)
        for problem in problems:
            self.app.LOG.warning(problem)
        name, findings = check.audit(host, parsed_args.host,
                                     placement.connect(conf), conf)
        findings = (*findings, *fabric_findings(parsed_args, conf, host))
        self.app.LOG.info('%s: %s', name,
                          errors.count(len(findings), 'finding'))
        self.code = int(bool(findings))
        return self.columns, [
            (finding.thing, finding.reason, finding.remedy, finding.provider,
             finding.withheld, finding.passing) for finding in findings]


class RecordHost(main.Command):
    """Write the facts that nova-accel reads of this host to a file.

    Those that identify the host are left out.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        add_root(parser)
        parser.add_argument(
            '--identifying', action='store_true',
            help='keep serial numbers, MAC and IP addresses, uuids and names '
                 'that people chose')
        parser.add_argument(
            'file', help='file to write; "-" for standard output; compressed '
                         'if the name ends in .gz')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        name = parsed_args.file
        recording = recorder.record(
            trees.open_tree(_root(parsed_args,
                                  self.app.configuration(SERVICE))),
            parsed_args.identifying)
        if name == '-':
            self.app.stdout.write(recording.dumps())
            return
        content = recording.dumps().encode()
        if name.endswith('.gz'):
            # No timestamp, so that equal hosts give equal files.
            content = gzip.compress(content, mtime=0)
        pathlib.Path(name).write_bytes(content)
        self.app.stdout.write(
            f'{name}: {errors.count(len(recording.files), "file")}, '
            f'{errors.count(len(recording.links), "link")}, '
            f'{errors.count(len(content), "byte")}\n')


def add_root(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the machine to read."""
    parser.add_argument('--sysfs-root', metavar='PATH',
                        help='/sys, a copy of it, or a recording (default: '
                             'sysfs_root in nova.conf)')


def add_host(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the machine and its compute node."""
    add_root(parser)
    parser.add_argument('--host', metavar='NAME',
                        help='name of the compute node (default: the host '
                             'name that libvirt reports)')


def add_isolation(parser: argparse.ArgumentParser) -> None:
    """Add the option that shows the effect of another ``isolation``."""
    parser.add_argument(
        f'--{strict.OPTION}', choices=(strict.STANDARD, strict.STRICT),
        help='try this value instead of that in nova.conf')


def configuration(app: main.Application,
                  arguments: argparse.Namespace) -> cfg.ConfigOpts:
    """Return nova.conf, with the option of :func:`add_isolation`."""
    conf = app.configuration(SERVICE)
    if arguments.isolation:
        conf.set_override(strict.OPTION, arguments.isolation, 'nova_accel')
    return conf


def _suggest(host: model.Host, kinds: discovery.Enumerators,
             decide: reader.Offer) -> suggestion.Suggestions:
    return suggestion.suggest(host.functions, kinds.values(),
                              lambda items: decide(_parse(items)))


def _parse(items: collections.abc.Iterable[suggestion.Item],
           ) -> list[spec_entry.Entry]:
    # As JSON, because the user pastes them as JSON.
    return reader.parse(map(json.dumps, items), 'suggestion')[0]


def _unmatched(entries: collections.abc.Iterable[spec_entry.Entry],
               host: model.Host,
               ) -> collections.abc.Iterator[errors.EntryError]:
    """Yield an error for each entry that names no device of this host."""
    functions = {function.address: function for function in host.functions}
    for entry in entries:
        if not any(entry.names(function, model.card_of(function, functions))
                   for function in host.functions):
            yield errors.EntryError(
                entry.label, 'names no device of this host', 'compare it '
                'with the output of nova-accel host show --all')


def read(arguments: argparse.Namespace, conf: cfg.ConfigOpts,
         ) -> tuple[model.Host, list[errors.AccelError | str]]:
    """Return the Host by nova.conf, and what is wrong with either.

    :param arguments: parsed, with the option of :func:`add_root`
    :raises errors.AccelError: if the host cannot be read
    """
    return read_tree(trees.open_tree(_root(arguments, conf)), conf)


def read_tree(tree: trees.Tree, conf: cfg.ConfigOpts,
              ) -> tuple[model.Host, list[errors.AccelError | str]]:
    """Return the Host that nova.conf makes of a tree, and what is wrong."""
    entries, broken = reader.parse(conf.nova_accel.device_spec, _OPTION)
    file, unusable = reader.parse_links(conf.nova_accel.link_domains)
    host = _read_host(tree, conf, file)(entries)
    return host, [*broken, *unusable, *nova_conf.broken_commands(conf),
                  *host.problems]


def fabric_findings(arguments: argparse.Namespace, conf: cfg.ConfigOpts,
                    host: model.Host) -> list[consistency.Finding]:
    """Return what is wrong with the fabric manager and its list.

    :param arguments, conf: as for :func:`read`
    :param host: what it returned
    """
    file, _unusable = reader.parse_links(conf.nova_accel.link_domains)
    switches, unusable = _switches(
        trees.open_tree(_root(arguments, conf)), conf)
    switched = switches.locate(host.functions)
    parted = (problem.partition(': ') for problem in (
        *map(str, unusable), *switched.problems, *switched.merge(file)[1]))
    return [consistency.Finding(
        thing, reason, 'compare it with the output of nova-accel host show')
        for thing, _colon, reason in parted]


def _root(arguments: argparse.Namespace, conf: cfg.ConfigOpts) -> str:
    root: str = arguments.sysfs_root or conf.nova_accel.sysfs_root
    return root


def _read_host(tree: trees.Tree, conf: cfg.ConfigOpts, file: model.Links,
               kinds: discovery.Enumerators | None = None,
               switched: reader.Locate | None = None) -> reader.Offer:
    return reader.read_machine(
        tree, nova_claims.claims(conf), kinds, links=file,
        policy=nova_conf.policy(conf), switched=switched)


def _switches(tree: trees.Tree, conf: cfg.ConfigOpts,
              tried: str | None = None,
              ) -> tuple[fabric.Switches, list[errors.AccelError]]:
    """Return the fabric, and why its manager cannot be asked.

    :param tried: an argument instead of the option in nova.conf. Only with
        it, a manager is asked beside a recording
    """
    conf.register_opts([cfg.StrOpt('state_path', default=''),
                        cfg.StrOpt('host', default=socket.gethostname())])
    switches = fabric.Switches(
        lambda: operations.Trusted('/sys'),
        fabric.kept(conf.state_path, conf.host), writes=False)
    defined = tried or conf.nova_accel.fabric_manager
    if not tried and isinstance(tree, trees.Recording):
        defined = ''
    try:
        if defined and not tried:
            # The command runs with the rights of the user, who may be root.
            for file in nova_conf.files(conf):
                trust.check_only_root_writes(os.path.realpath(file))
    except (OSError, ValueError) as error:
        return switches, [errors.EntryError(
            definition.OPTION, f'is not used by this command: {error}')]
    return switches, [*filter(None, [switches.configure(defined)])]


def as_data(host: model.Host,
            withheld: collections.abc.Iterable[model.Refusal],
            health_source: str,
            problems: list[str], warnings: list[str],
            found: suggestion.Suggestions,
            switched: located.Located = located.NONE,
            file: model.Links | None = None) -> text.Data:
    """Return a Host as plain data, for JSON; addresses as in sysfs.

    :param withheld: the withheld functions, suggested ones as well
    :param switched: the partitions of the fabric manager
    :param file: the content of the file of link domains
    """
    states = {refusal.address: 'withheld' if refusal.is_withheld
              else 'refused' for refusal in host.refusals}
    states.update((address, 'offered') for device in host.devices
                  for region in device.regions
                  for unit in region.available for address in unit)
    resets = reset_methods.describe_all(host)
    return {
        'iommu_groups': any(function.iommu_group is not None
                            for function in host.functions),
        'numa_nodes': list(host.numa_nodes),
        'cpuless_nodes': {str(node): nearest for node, nearest
                          in host.cpuless_nodes.items()},
        'devices': [_device(device, resets) for device in host.devices],
        'refused': [_refusal(refusal) for refusal in host.refusals
                    if not refusal.is_withheld],
        'withheld': [*map(_refusal, withheld)],
        'health': health_source,
        'functions': [_function(function, states.get(function.address,
                                                     'unnamed'))
                      for function in host.functions],
        'links': {'partitions': [*map(sorted, host.links.partitions)],
                  'islands': [*map(sorted, host.links.islands)]},
        'fabric_partitions': [{
            'id': partition.id, 'active': partition.is_active,
            'modules': [member.module for member in partition.members],
            'cards': cards and sorted(cards),
            'in_file': cards in (file.partitions if file else ()),
            'failed_links': [member.module for member in partition.members
                             if member.has_failed_links],
        } for partition in switched.partitions
            for cards in [switched.cards.get(partition.id)]],
        'problems': problems,
        'warnings': warnings,
        'suggestions': [{
            'entry': entry.item, 'units': entry.units, 'others': entry.others}
            for entry in found.entries],
        'not_suggested': [*map(_refusal, found.refusals)],
    }


def _refusal(refusal: model.Refusal) -> text.Data:
    return {'address': str(refusal.address), 'ids': refusal.ids,
            'reason': refusal.reason, 'remedy': refusal.remedy}


def _device(device: model.Device,
            resets: collections.abc.Mapping[model.Unit, str]) -> text.Data:
    return {
        'address': str(device.address),
        'ids': device.ids,
        'location': _location(device.location),
        'regions': [{
            'name': region.name,
            'resource_class': region.resource_class,
            'traits': sorted(region.traits),
            'managed': region.managed,
            'kind': region.kind,
            'variant': region.variant,
            'mdevs': region.mdevs,
            'live_migratable': region.live_migratable,
            'total': region.total,
            'units': [[str(address) for address in unit]
                      for unit in region.units],
            'resets': [resets.get(unit) for unit in region.units],
            'cleaner': region.cleaner or None,
        } for region in device.regions],
    }


def _function(function: model.Function, state: str) -> text.Data:
    return {
        'address': str(function.address),
        'state': state,
        'vendor_id': function.vendor_id,
        'product_id': function.product_id,
        'subsystem_vendor_id': function.subsystem_vendor_id,
        'subsystem_product_id': function.subsystem_product_id,
        'class': f'{function.class_code:06x}',
        'revision': f'{function.revision:02x}',
        'location': _location(function.location),
        'iommu_group': function.iommu_group,
        'driver': function.driver,
        'physfn': str(function.physfn) if function.physfn else None,
        'total_vfs': function.total_vfs,
        'num_vfs': function.num_vfs,
        'mdev_types': [{'name': mdev_type.name,
                        'available': mdev_type.available,
                        'instances': list(mdev_type.instances)}
                       for mdev_type in function.mdev_types],
        'reset_methods': (None if function.reset_methods is None
                          else list(function.reset_methods)),
        'firmware': function.firmware_text,
        'bars': (None if function.bars is None
                 else [_bar(bar) for bar in function.bars]),
        'use': function.use,
        'console': function.console,
    }


def _bar(bar: model.Bar) -> text.Data:
    return {'number': bar.number, 'bytes': bar.size, '64bit': bar.wide,
            'prefetchable': bar.prefetchable}


def _location(location: model.Location) -> text.Data:
    return {'numa_node': location.numa_node,
            'cpuless_node': location.cpuless_node, 'root': location.root,
            'ports': list(location.ports), 'switch': location.switch}
