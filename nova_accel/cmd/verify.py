# SPDX-License-Identifier: Apache-2.0
"""``nova-accel host verify``: a report on what works with this hardware.

The report is made of a recording without names, so that it can be published.
"""

import argparse
import collections.abc
import importlib.metadata
import os
import platform
import re
import time
import typing

from nova_accel.cmd import check
from nova_accel.cmd import health
from nova_accel.cmd import host as hosts
from nova_accel.cmd import text
from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core.device_spec import reset_methods
from nova_accel.host import health_checks
from nova_accel.host import loader
from nova_accel.host import privileged
from nova_accel.host import recorder
from nova_accel.host import reset
from nova_accel.host import tree as trees

_NOT_TRIED, _FAILED = 'reset not tried', 'reset failed'

#: Where the facts come from.
HARDWARE, COPY, RECORDING = 'hardware', 'copy of sysfs', 'recording'


class VerifyHost(text.ShowOne):
    """Check what this host offers, and write a report that names nobody.

    It starts no guest. With --reset, it also resets one free unit of each
    region, so use that only while no server starts on this host. It exits
    with 1 if a reset fails or a device is not healthy.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        hosts.add_root(parser)
        hosts.add_isolation(parser)
        parser.add_argument(
            '--reset', action='store_true',
            help='reset one unit of each region that no domain holds and '
                 'that has no driver of the host')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> text.Output:
        conf = hosts.configuration(self.app, parsed_args)
        tree = trees.open_tree(parsed_args.sysfs_root
                               or conf.nova_accel.sysfs_root)
        recording = recorder.record(tree)
        host, problems = hosts.read_tree(recording, conf)
        for problem in problems:
            self.app.LOG.warning(problem)
        held = None
        if parsed_args.reset:
            held = check.held(conf)
            if trees.is_live(tree):
                _become_privileged()
        found = health.read(tree, host, health.offered(host).union(
            refusal.address for refusal in host.refusals),
            loader.open_all(tree), conf).found
        resets = reset_methods.describe_all(host)
        regions = [_region(tree, host, found, resets, device, region, held)
                   for device in host.devices for region in device.regions]
        self.code = int(any(map(_is_bad, regions)))
        return self.dict2columns({
            'nova_accel': importlib.metadata.version('nova-accel'),
            'source': _source(tree),
            'kernel': _kernel() if trees.is_live(tree) else None,
            'iommu_groups': any(function.iommu_group is not None
                                for function in host.functions),
            'regions': regions,
            'refused': [_refused(host, found, refusal)
                        for refusal in host.refusals],
        })

    def lines(self, names: collections.abc.Sequence[str],
              data: collections.abc.Iterable[typing.Any],
              ) -> collections.abc.Iterator[str]:
        report = dict(zip(names, data, strict=True))
        kernel = f', Linux {report["kernel"]}' if report['kernel'] else ''
        yield f'nova_accel {report["nova_accel"]}, {report["source"]}{kernel}'
        for region in report['regions']:
            yield (f'+ {region["ids"]}: '
                   f'{errors.count(region["units"], "unit")}, kind '
                   f'{region["kind"]}, driver {region["driver"] or "none"}, '
                   f'reset methods {region["reset_methods"] or "unknown"}, '
                   f'reset by {region["reset_by"] or "its kind"}: '
                   f'{region["reset"]}')
            yield from (f'! {problem}' for problem in region['problems'])
        for refusal in report['refused']:
            yield (f'- {refusal["ids"]}: {refusal["reason"]}; driver '
                   f'{refusal["driver"] or "none"}, reset methods '
                   f'{refusal["reset_methods"] or "unknown"}')
            yield from (f'! {problem}' for problem in refusal['problems'])


def _become_privileged() -> None:
    """Do privileged operations in this process.

    :raises errors.AccelError: if it is not root's
    """
    if os.geteuid():
        raise errors.AccelError('--reset', 'needs root', 'run the command as '
                                'root')
    for context in privileged.CONTEXTS:
        context.set_client_mode(False)


def _is_bad(region: text.Data) -> bool:
    return bool(region['problems'] or region['reset'].startswith(_FAILED))


def _source(tree: trees.Tree) -> str:
    if trees.is_live(tree):
        return HARDWARE
    return COPY if isinstance(tree, trees.Directory) else RECORDING


def _kernel() -> str:
    """Return the kernel's version without the suffix of who built it."""
    return ''.join(re.findall(r'^[\d.]*\d', platform.release()))


def _refused(host: model.Host, found: health_checks.Problems,
             refusal: model.Refusal) -> text.Data:
    own = [function for function in host.functions
           if function.address == refusal.address]
    return {'ids': refusal.ids, **_facts(own, found),
            'reason': refusal.reason}


def _region(tree: trees.Tree, host: model.Host, found: health_checks.Problems,
            resets: collections.abc.Mapping[model.Unit, str],
            device: model.Device, region: model.Region,
            held: collections.abc.Container[model.Address] | None,
            ) -> text.Data:
    functions = {function.address: function for function in host.functions}
    own = [functions[address] for unit in region.units for address in unit]
    return {
        'ids': own[0].ids if own else device.ids,
        'kind': region.kind,
        'units': region.size,
        **_facts(own, found),
        'reset_by': ', '.join(sorted({resets[unit] for unit in region.units
                                      if unit in resets})),
        'reset': (f'{_NOT_TRIED}: it was not asked for' if held is None
                  else _reset(tree, host, region, held)),
    }


def _facts(own: list[model.Function],
           found: health_checks.Problems) -> text.Data:
    """Return what is seen of functions, offered or not.

    :param found: what is wrong with functions
    """
    return {
        'driver': ' '.join(sorted({function.driver for function in own
                                   if function.driver})),
        'reset_methods': ' '.join(sorted({
            method for function in own
            for method in function.reset_methods or ()})),
        'problems': [*dict.fromkeys(
            problem for function in own
            for address in (function.address, function.physfn)
            if address and (problem := found.get(address)))],
    }


def _reset(tree: trees.Tree, host: model.Host, region: model.Region,
           held: collections.abc.Container[model.Address]) -> str:
    """Reset one free unit of a region; return what came of it."""
    units = [unit for unit in reset_methods.units(host)
             if unit in region.units]
    if not units:
        return f'{_NOT_TRIED}: its kind resets units itself'
    free = [unit for unit in units if _is_free(host, unit, held)]
    if not free:
        return f'{_NOT_TRIED}: no unit is free'
    unbound = [unit for unit in free if not _has_host_driver(host, unit)]
    if not unbound:
        return f'{_NOT_TRIED}: all free units have a driver of the host'
    resets, begin = reset.Resets(), time.monotonic()
    if resets.reset(tree, host, unbound[0]):
        return f'reset in {time.monotonic() - begin:.1f} s'
    return f'{_FAILED}: {"; ".join(resets.refused().values())}'


def _is_free(host: model.Host, unit: model.Unit,
             held: collections.abc.Container[model.Address]) -> bool:
    return not any(address in held for address in unit) and not any(
        function.open for function in _functions(host, unit))


def _has_host_driver(host: model.Host, unit: model.Unit) -> bool:
    return any(map(reset_methods.has_host_driver, _functions(host, unit)))


def _functions(host: model.Host, unit: model.Unit) -> list[model.Function]:
    return [function for function in host.functions
            if function.address in unit]
