# SPDX-License-Identifier: Apache-2.0
"""Withholds the devices whose health is in doubt."""

import collections
import collections.abc
import itertools
import time

import nova.conf
from oslo_log import log as logging

from nova_accel.compute import background
from nova_accel.compute import log_once
from nova_accel.core import health
from nova_accel.core import kind
from nova_accel.core import model
from nova_accel.core.placement import inventory
from nova_accel.host import health as sysfs
from nova_accel.host import tree as trees

LOG = logging.getLogger(__name__)

CONF = nova.conf.CONF

_UNHEALTHY = model.WithheldState.UNHEALTHY
_BLOCKED = 'the kernel blocks when its configuration space is read'
_REMEDY = ('look for it in the kernel log; servers that hold it keep it, and '
           'it is offered again when this is over (see the options health_* '
           'in [nova_accel])')


class Health:
    """What is wrong with the devices of this host, as it was read last.

    Counters are compared with those of the first look, except for devices that
    were withheld before nova-compute started: all their errors count.
    """

    def __init__(self) -> None:
        self._reader = background.Runner()
        self._reading: model.PciAddress | None = None
        self._histories: dict[model.PciAddress, health.History] = {}
        self._problems: dict[model.PciAddress, str] = {}
        self._broken = log_once.LogOnce(LOG)

    def check(self, tree: trees.Tree, here: inventory.NodeInventory,
              kinds: collections.abc.Mapping[str, kind.Enumerator],
              ) -> tuple[bool, set[model.PciAddress]]:
        """Look at all functions of devices.

        It reads in a thread, since a reset that hangs blocks the reading. A
        function that blocks it is withheld in the next round.

        :param kinds: opened on the tree, by name
        :returns: whether problems have changed, and the functions that have
            none any more
        """
        before = self._problems
        if not self._reader.run(lambda: self._read(tree, here, kinds)):
            # A known problem stays: the reset that blocks may be due to it.
            self._problems = {self._reading: _BLOCKED, **before}
        after = self._problems
        for address in before.keys() - after.keys():
            LOG.info('Device %s is healthy again: it was withheld because %s',
                     address, before[address])
        return before != after, before.keys() - after.keys()

    def withheld(self, functions: collections.abc.Iterable[model.Function],
                 ) -> dict[model.PciAddress, model.Withheld]:
        """Return the functions with problems, with reason and remedy."""
        problems = self._problems
        return {function.address: model.Withheld(
            problems[function.address], _REMEDY, _UNHEALTHY)
            for function in functions if function.address in problems}

    def _read(self, tree, here, kinds) -> None:
        now, limits = time.monotonic(), _limits()
        suspected = _addresses(item for item in here.offered
                               if (item.uuid, _UNHEALTHY)
                               in here.node.withheld)
        vfs = collections.Counter(function.physfn
                                  for function in here.host.functions)
        examiners = {name: opened for name, opened in kinds.items()
                     if isinstance(opened, kind.Examiner)}
        named = _addresses(here.offered)
        histories, found, failures = {}, {}, []
        for function in here.host.functions:
            address = self._reading = function.address
            if address not in named:
                continue
            facts = sysfs.read(tree, function, vfs[address])
            histories[address] = self._histories.get(
                address) or health.History(
                    {} if address in suspected else facts.errors)
            recent = histories[address].add(now, facts.errors)
            if problems := '; '.join((
                    *health.problems(facts, recent, limits),
                    *_examine(function, examiners, failures))):
                found[address] = problems
        self._histories, self._problems = histories, found
        self._broken.log(failures)


def _examine(function, examiners, failures: list[log_once.Line],
             ) -> collections.abc.Iterator[str]:
    """Yield what kinds find wrong with a function.

    :param failures: gets a line for each kind that cannot tell
    """
    for name, examiner in examiners.items():
        try:
            yield from examiner.examine(function)
        except Exception as error:
            failures.append((logging.WARNING, f'Kind {name} cannot examine '
                             f'{function.address}: {error!r}'))


def _addresses(items: collections.abc.Iterable[inventory.Offered],
               ) -> set[model.Address]:
    """Return the addresses of cards and of their units."""
    return {address for item in items for address in (
        item.device.address, *itertools.chain(*item.region.units))}


def _limits() -> health.Limits:
    conf = CONF.nova_accel
    return health.Limits(
        {severity: most for severity, most in (
            (health.Severity.FATAL, conf.health_max_fatal_errors),
            (health.Severity.NONFATAL, conf.health_max_nonfatal_errors),
            (health.Severity.CORRECTABLE, conf.health_max_correctable_errors))
         if most >= 0},
        conf.health_check_link_width, conf.health_check_link_speed)
