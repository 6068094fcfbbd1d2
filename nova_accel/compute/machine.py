# SPDX-License-Identifier: Apache-2.0
"""The compute node's Host, read afresh, and what the log should say of it."""

import collections
import collections.abc

import nova.conf
from oslo_log import log as logging

from nova_accel import conf
from nova_accel import foreign
from nova_accel.core import entry
from nova_accel.core import errors
from nova_accel.core import hostdev
from nova_accel.core import identity
from nova_accel.core import model
from nova_accel.core import providers
from nova_accel.host import mdevs
from nova_accel.host import reader
from nova_accel.host import tree

LOG = logging.getLogger(__name__)

CONF = nova.conf.CONF


class Machine:
    """This machine, as nova.conf tells us to look at it.

    Nothing is cached but what was said in the log, so that it is said once.
    Reading takes milliseconds.
    """

    def __init__(self) -> None:
        conf.register_opts(CONF)
        self._tree: tree.Tree | None = None
        self._said: frozenset[tuple[int, str]] = frozenset()
        self._swept: frozenset[tuple[int, str]] = frozenset()

    def read(self) -> model.Host:
        """The Host as it is now.

        :raises errors.TreeError: if ``sysfs_root`` is none
        """
        if self._tree is None:
            self._open()
        entries, broken = entry.parse_all(CONF.nova_accel.device_spec)
        host = reader.read(self._tree, entries, foreign.claims(CONF))
        self._said = _say([(logging.ERROR, f'{error}; it is left out')
                           for error in broken] + _report(host), self._said)
        return host

    def prepare(self, hostdevs: collections.abc.Iterable[hostdev.Hostdev],
                offered: collections.abc.Mapping[str, providers.Offered],
                ) -> None:
        """Make the mdevs that a guest is to start with.

        :param offered: by provider
        :raises errors.AssignmentError: if one cannot be made
        """
        for mdev in hostdevs:
            if mdevs.exists(self._tree, mdev.address):
                continue
            _group, provider = identity.parse_alias(mdev.alias)
            if provider not in offered:
                raise errors.AssignmentError(
                    f'mdev {mdev.address}', 'its device is not there, or no '
                    'entry names it any more')
            item = offered[provider]
            mdevs.make(self._tree, item.device, item.region, mdev.address)
            LOG.info('Made mdev %s of type %s on device %s', mdev.address,
                     item.region.mdev_type, item.device.address)

    def sweep(self, held: collections.abc.Callable[
            [], collections.abc.Collection[model.Address]]) -> None:
        """Remove mdevs of ours that nobody has any more.

        :param held: what somebody has or is about to; asked after the mdevs
            have been looked up, so that none that is new is taken for left
            over
        """
        made = mdevs.made(self.read())
        if not made:
            return
        lines = []
        for address, why in mdevs.remove(self._tree, made - set(held())):
            if why:
                lines.append((logging.WARNING, f'mdev {address} is nobody\'s '
                              f'and cannot be removed: {why}'))
            else:
                LOG.info('Removed mdev %s, which nobody has', address)
        self._swept = _say(lines, self._swept)

    def _open(self) -> None:
        try:
            self._tree = tree.open_tree(CONF.nova_accel.sysfs_root)
        except errors.TreeError as error:
            self._said = _say([(logging.ERROR, str(error))], self._said)
            raise


def _say(lines: list[tuple[int, str]],
         before: frozenset[tuple[int, str]]) -> frozenset[tuple[int, str]]:
    """Log what was not said the last time; what is said now."""
    for level, line in lines:
        if (level, line) not in before:
            LOG.log(level, '%s', line)
    return frozenset(lines)


def _report(host: model.Host) -> list[tuple[int, str]]:
    lines = [(logging.WARNING, problem) for problem in host.problems]
    refused = collections.defaultdict(list)
    for refusal in host.refusals:
        refused[refusal.reason, refusal.remedy].append(
            f'{refusal.address} ({refusal.ids})')
    for (reason, remedy), devices in refused.items():
        lines.append((logging.WARNING,
                      f'Not offered: {", ".join(devices)}: {reason}'
                      + (f'; {remedy}' if remedy else '')))
    counts = collections.Counter()
    for device in host.devices:
        for region in device.regions:
            counts[region.resource_class] += len(region.units)
    if counts:
        lines.append((logging.INFO, 'Offered: ' + ', '.join(
            f'{total} {name}' for name, total in sorted(counts.items()))
            + f' on {len(host.devices)} devices'))
    return lines
