# SPDX-License-Identifier: Apache-2.0
"""The command ``nova-accel-status``: ``upgrade check``, as ``nova-status``.

It reads the files that nova-compute reads. A check of a service for which
they have no options of nova_accel succeeds. Nova is not imported.
"""

import collections
import collections.abc
import dataclasses
from importlib import metadata
import sys
import typing

from oslo_config import cfg
from oslo_upgradecheck import upgradecheck

from nova_accel import conf as options
from nova_accel import nova_claims
from nova_accel import novas
from nova_accel.cmd import main as command
from nova_accel.cmd import profile
from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.device_spec import spec_entry
from nova_accel.core.placement import outdated
from nova_accel.core.placement import queries
from nova_accel.host import reader
from nova_accel.host import tree as trees
from nova_accel.host import vfio
from nova_accel.profiles import store

_NAME = 'nova-accel-status'

#: The exit code of oslo.upgradecheck if the checks cannot be run.
BROKEN = 255

_DRIVER = 'accel.LibvirtDriver'
_FILTER_NAME = 'AcceleratorFilter'
_FILTER = f'nova_accel.scheduler.filter.{_FILTER_NAME}'
_WEIGHER = 'nova_accel.scheduler.weigher.AcceleratorWeigher'

# Nova's options, without their defaults: None if nova.conf does not set them.
_SCHEDULER_OPTIONS = (cfg.MultiStrOpt('available_filters'),
                      cfg.ListOpt('enabled_filters'),
                      cfg.ListOpt('weight_classes'))

# Names in one text; the others are counted.
_MOST_NAMES = 5

Errors = collections.abc.Iterable[errors.AccelError]


def check_scheduler(conf: cfg.ConfigOpts) -> upgradecheck.Result:
    """Check that nova-scheduler uses the filter, as the last, and weigher."""
    conf.register_opts(_SCHEDULER_OPTIONS, 'filter_scheduler')
    found = [conf.filter_scheduler[option.name]
             for option in _SCHEDULER_OPTIONS]
    if not any(found):
        return _not_here('[filter_scheduler] has no filters; nova-scheduler '
                         f'needs {_FILTER_NAME}')
    available, enabled, weighers = (names or [] for names in found)
    failures, warnings = [], []
    if _FILTER not in available:
        failures.append(errors.AccelError(
            '[filter_scheduler] available_filters', f'does not have {_FILTER}',
            "add a line with it, beside that of Nova's filters"))
    if _FILTER_NAME not in enabled:
        failures.append(errors.AccelError(
            '[filter_scheduler] enabled_filters', f'does not have '
            f'{_FILTER_NAME}, so nova-scheduler ignores the rules of '
            'profiles', 'add it as the last one'))
    elif enabled[-1] != _FILTER_NAME:
        warnings.append(errors.AccelError(
            '[filter_scheduler] enabled_filters', f'has {enabled[-1]} after '
            f'{_FILTER_NAME}, which then also searches hosts that '
            f'{enabled[-1]} rejects', f'make {_FILTER_NAME} the last one'))
    if _WEIGHER not in weighers:
        warnings.append(errors.AccelError(
            '[filter_scheduler] weight_classes', f'does not have {_WEIGHER}, '
            'so hosts with devices also get servers without devices',
            "add it after Nova's weighers"))
    return _result(f'{_FILTER_NAME} is enabled, as the last filter', failures,
                   warnings)


def check_compute(conf: cfg.ConfigOpts) -> upgradecheck.Result:
    """Check ``compute_driver``, and that ``device_spec`` can be used."""
    conf.register_opt(cfg.StrOpt('compute_driver'))
    nova_claims.register_opts(conf)
    texts = conf.nova_accel.device_spec
    if not texts and conf.compute_driver != _DRIVER:
        return _not_here('[nova_accel] device_spec is not set')
    entries, broken = reader.parse(texts)
    failures: list[errors.AccelError] = [*broken]
    if conf.compute_driver != _DRIVER:
        failures.append(errors.AccelError(
            '[DEFAULT] compute_driver',
            f'is {conf.compute_driver or "not set"}, so [nova_accel] '
            'device_spec has no effect', f'set it to {_DRIVER}'))
    return _result(
        f'device_spec has {errors.count(len(entries), "entry", "entries")}',
        failures, (*_claimed(conf, entries), *_iommufd(conf)))


def _iommufd(conf: cfg.ConfigOpts) -> Errors:
    """Yield an error if the kernel here lacks what the option needs."""
    reason = conf.nova_accel.iommufd and vfio.why_no_iommufd(
        trees.open_tree(conf.nova_accel.sysfs_root))
    if reason:
        yield errors.AccelError(
            '[nova_accel] iommufd', f'has no effect: {reason}', 'use a kernel '
            'that has it, load vfio-pci when the host boots, or set the '
            'option to false')


def _claimed(conf: cfg.ConfigOpts,
             entries: collections.abc.Sequence[spec_entry.Entry]) -> Errors:
    """Yield an error for each pair of entries that name the same devices."""
    host = reader.read(trees.open_tree(conf.nova_accel.sysfs_root))
    found = collections.defaultdict(list)
    for entry, claim, function in spec_entry.claimed(
            host.functions, entries, nova_claims.claims(conf)):
        found[entry.label, claim.label].append(str(function.address))
    for (ours, novas_own), addresses in found.items():
        yield errors.AccelError(
            _several('device', addresses), f'claimed by {novas_own} and by '
            f'{ours}, so not offered by nova_accel', 'name each device in one '
            'of the two')


def check_isolation(conf: cfg.ConfigOpts) -> upgradecheck.Result:
    """Say what ``isolation = strict`` refuses, even before it is set."""
    nova_claims.register_opts(conf)
    entries, _broken = reader.parse(conf.nova_accel.device_spec)
    if not entries:
        return _not_here('[nova_accel] device_spec is not set')
    host = reader.read(
        trees.open_tree(conf.nova_accel.sysfs_root), entries,
        nova_claims.claims(conf), policy=dataclasses.replace(
            options.policy(conf), strict=True))
    refused = [refusal for refusal in host.refusals
               if model.WithheldState.NOT_STRICT in refusal.states]
    found = [errors.AccelError(', '.join(
        f'{refusal.address} ({refusal.ids})' for refusal in alike), reason,
        remedy) for (reason, remedy), alike in model.group(refused).items()]
    if options.is_strict(conf):
        return _result('isolation = strict refuses no device', (), found)
    return _result('. '.join(map(str, (
        f'{errors.count(len(refused), "device")} would be refused under '
        'isolation = strict', *found))), (), ())


def check_profiles(conf: cfg.ConfigOpts) -> upgradecheck.Result:
    """Check the directories of profiles and the profiles in them."""
    profiles = store.Store(conf.nova_accel.profile_dirs)
    missing = profiles.missing()
    source = conf.get_location('profile_dirs', 'nova_accel')
    is_default = source and source.location is cfg.Locations.opt_default
    if is_default and missing:
        return _not_here(f'{missing[0].thing} does not exist; nova-api reads '
                         'profiles from there')
    found = profiles.all()
    return _result(
        f'profiles: {len(found)}, digest: {profile.digest(found)}',
        (*profiles.problems(), *profile.unusable(found)), missing)


def check_placement(conf: cfg.ConfigOpts) -> upgradecheck.Result:
    """Check that each nova-compute with devices runs this nova_accel.

    :raises errors.AccelError: if Placement cannot be queried
    """
    # keystoneauth1 is slow to import, and only this check needs it.
    from nova_accel.cmd import placement
    if not placement.is_configured(conf):
        return _not_here('[placement] has no auth_type')
    get = placement.connect(conf)
    found = _outdated(get)
    names = [provider['name'] for uuid in found[:_MOST_NAMES]
             for provider in queries.providers(get, uuid=uuid)]
    return _result('each nova-compute with devices runs this nova_accel', (), [
        errors.AccelError(
            _several('compute node', names, len(found)), 'nova-compute runs '
            'an older nova_accel there', 'install this version and restart '
            'nova-compute')] if found else ())


def _outdated(get: queries.Get) -> list[str]:
    """Return the uuids of the compute nodes with an older nova_accel."""
    if not queries.is_reported(get):
        return []
    marked, summaries = [], {}
    if any(known['name'] == naming.HOST_CLASS
           for known in get('/resource_classes')['resource_classes']):
        marked = queries.providers(get, resources=f'{naming.HOST_CLASS}:1')
        # Has all providers of these hosts, unless Placement limits it.
        summaries = queries.summaries(get)
    return outdated.find(
        queries.providers(get, required=naming.MARKER_TRAIT),
        {provider['uuid'] for provider in marked},
        lambda uuid: (summaries.get(uuid) or get(
            f'/resource_providers/{uuid}/traits'))['traits'])


def check_options(conf: cfg.ConfigOpts) -> upgradecheck.Result:
    """Check that all options of nova_accel in the files exist."""
    return _result('all options of nova_accel in nova.conf exist', (),
                   options.unknown(conf))


def check_versions(_conf: cfg.ConfigOpts) -> upgradecheck.Result:
    """Check that nova_accel is tested with the Nova and Placement here."""
    found, warnings = [], []
    for name, offset in (('nova', 0),
                         ('openstack-placement', novas.PLACEMENT_OFFSET)):
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            if name == 'nova':
                warnings.append(errors.AccelError(
                    name, 'is not installed for this Python', 'run this with '
                    'the Python of Nova, and install nova_accel there'))
            continue
        found.append(f'{name} {version}')
        if int(version.partition('.')[0]) + offset not in novas.TESTED:
            warnings.append(errors.AccelError(
                found[-1], 'nova_accel is tested with the releases of '
                f'{novas.text()}', 'use a nova_accel that is tested with this '
                'release'))
    return _result(f'nova_accel is tested with {", ".join(found)}', (),
                   warnings)


def _result(success: str, failures: Errors, warnings: Errors,
            ) -> upgradecheck.Result:
    failures, warnings = [*failures], [*warnings]
    return upgradecheck.Result(
        upgradecheck.Code.FAILURE if failures else
        upgradecheck.Code.WARNING if warnings else upgradecheck.Code.SUCCESS,
        '. '.join(map(str, (*failures, *warnings))) or success)


def _not_here(why: str) -> upgradecheck.Result:
    return upgradecheck.Result(upgradecheck.Code.SUCCESS,
                               f'not configured here: {why}')


def _several(what: str, names: collections.abc.Sequence[str],
             count: int = 0) -> str:
    """Return ``compute nodes a, b and 3 more``.

    :param count: how many there are, default the number of names
    """
    count = count or len(names)
    more = count - _MOST_NAMES
    return (f'{what}{"s" * (count > 1)} '
            + ', '.join(map(errors.plain, names[:_MOST_NAMES]))
            + (f' and {more} more' if more > 0 else ''))


def _method(check: collections.abc.Callable[[cfg.ConfigOpts],
                                            upgradecheck.Result],
            ) -> collections.abc.Callable[['Commands'], upgradecheck.Result]:
    """Return a check as oslo.upgradecheck calls it; an error is a Failure."""
    def run(commands: 'Commands') -> upgradecheck.Result:
        try:
            return check(commands.conf)
        except (errors.AccelError, cfg.Error, OSError) as error:
            return upgradecheck.Result(upgradecheck.Code.FAILURE, str(error))
    return run


class Commands(upgradecheck.UpgradeCommands):
    """The checks, in the order in which they are shown."""

    _upgrade_checks = (
        ('nova-scheduler', _method(check_scheduler)),
        ('nova-compute', _method(check_compute)),
        ('Isolation', _method(check_isolation)),
        ('Device profiles', _method(check_profiles)),
        ('Compute nodes in Placement', _method(check_placement)),
        ('Options', _method(check_options)),
        ('Versions', _method(check_versions)),
    )

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self.conf = conf


class _NovaConf(cfg.ConfigOpts):
    """nova.conf, with the default files and directories of nova-compute."""

    def __call__(self, args: collections.abc.Sequence[str] | None = None,
                 project: str | None = None, *_args: typing.Any,
                 **_kwargs: typing.Any) -> None:
        super().__call__(
            args, project, _NAME,
            default_config_files=cfg.find_config_files(project,
                                                       'nova-compute'),
            default_config_dirs=cfg.find_config_dirs(project, 'nova-compute'))


def main(argv: list[str] | None = None) -> int:
    """Run the command.

    :param argv: arguments, default those of the process
    :returns: the highest ``upgradecheck.Code`` of the checks, or
        :data:`BROKEN`
    """
    command.prepare_output()
    conf = _NovaConf()
    options.register_opts(conf)
    try:
        return upgradecheck.main(conf, 'nova', Commands(conf),
                                 sys.argv[1:] if argv is None else argv)
    except (cfg.Error, OSError, UnicodeDecodeError) as error:
        print(f'{_NAME}: {error}', file=sys.stderr)
        return BROKEN


if __name__ == '__main__':
    sys.exit(main())
