# SPDX-License-Identifier: Apache-2.0
"""What is done to the machine, before a guest has something and after."""

import collections.abc
import contextlib

import nova.conf
from oslo_log import log as logging

from nova_accel import foreign
from nova_accel.compute import beside
from nova_accel.compute import machine
from nova_accel.compute import said
from nova_accel.core import assignment
from nova_accel.core import errors
from nova_accel.core import hostdev
from nova_accel.core import identity
from nova_accel.core import kind
from nova_accel.core import model
from nova_accel.core import providers
from nova_accel.core import reset as resets
from nova_accel.core import sriov as vfs
from nova_accel.host import loader
from nova_accel.host import sriov

LOG = logging.getLogger(__name__)

CONF = nova.conf.CONF

#: From a unit to a context in which nobody gets it, and whether it is free.
Aside = collections.abc.Callable[
    [model.Unit], contextlib.AbstractContextManager[bool]]


class Upkeep:
    """Devices made ready for guests, taken back from them, and reset.

    :param machine: whose devices they are
    """

    def __init__(self, machine: machine.Machine) -> None:
        self._machine = machine
        self._resets = machine.resets
        self._beside = beside.Beside()
        # What servers had since we run that was made for them, whether an
        # entry names it or not.
        self._given: set[model.Address] = set()
        self._releasing = beside.Beside()
        self._being_released: tuple[str, ...] = ()
        self._unreleased: list[said.Line] = []
        self._swept = said.Said(LOG)

    def set_vfs(self, held: collections.abc.Container[model.Address]) -> None:
        """Bring cards to as many virtual functions as their entries say.

        :param held: what domains hold
        :raises errors.TreeError: if ``sysfs_root`` is none
        """
        host = self._machine.read_whatever_reset()
        entries, _broken = self._machine.entries()
        changes, problems = vfs.plan(host.functions, entries,
                                     foreign.claims(CONF), held)
        for problem in problems:
            LOG.error('%s', problem)
        for change in changes:
            try:
                number = sriov.change(self._machine.tree, change)
            except Exception as error:
                # Of one card: the others go on.
                LOG.error('Device %s cannot have %d virtual functions: %s',
                          change.card, change.number, error)
                continue
            LOG.info('Device %s has %d virtual functions; it had %d',
                     change.card, number, change.before)
            if number != change.number:
                LOG.error('Device %s has %d virtual functions, though num_vfs '
                          'is %d: its driver made so many; write num_vfs %d, '
                          'or "all"', change.card, number, change.number,
                          number)

    def check(self, hostdevs: hostdev.Hostdevs,
              node: providers.Node) -> None:
        """Make sure that what a guest is to start with again is there.

        :raises errors.AccelError: if not
        """
        host = self._host_of(hostdevs) if hostdevs else None
        if host is not None:
            self._check(hostdevs, host, _offered(host, node))

    def prepare(self, hostdevs: hostdev.Hostdevs,
                node: providers.Node,
                wishes: collections.abc.Callable[
                    [str, collections.abc.Collection[model.Address] | None],
                    collections.abc.Mapping[str, str]],
                host: model.Host | None = None) -> None:
        """Make ready what a guest is to start with.

        :param host: the machine, if it has just been read
        :param wishes: by group, and the devices that change with what serves
            it (None if nothing is to change), what the server's Profile says
            beside classes and traits
        :raises errors.AccelError: if something cannot be made ready, or is not
            there
        """
        self._resets.used(device.address for device in hostdevs)
        host = host or self._host_of(hostdevs)
        if host is None:
            return
        offered = _offered(host, node)
        self._given.update(device.address for device in hostdevs
                           if self._is_made(device, offered))
        self._check(hostdevs, host, offered)
        for device in hostdevs:
            group, _provider = identity.parse_alias(device.alias)
            item = _serving(offered, device)
            if item is None:
                _check_wishes(device, host, wishes(group, None))
                continue
            _check_heeded(item, wishes(group, None))
            preparer = self._machine.preparers().get(item.region.kind)
            if preparer:
                try:
                    preparer.prepare(device, item, wishes(
                        group, _affected(item, host)))
                finally:
                    self._machine.forget()

    def _check(self, hostdevs, host, offered) -> None:
        """Check that nothing is missing that nobody can make.

        :raises errors.AssignmentError: naming it
        """
        _check_there(hostdevs, host, offered)
        for device in hostdevs:
            if (self._is_made(device, offered)
                    and _serving(offered, device) is None
                    and any(inspector.is_ready(device.address) is False
                            for inspector in self._inspectors())):
                raise errors.AssignmentError(
                    f'device {device.address}', 'it is not what the server '
                    'had any more, and no entry names what that was',
                    'put the entry back as it was')

    def _is_made(self, device, offered) -> bool:
        """Whether it was made what it is, as far as nova.conf still says."""
        item = _serving(offered, device)
        if item is not None:
            return item.region.kind in self._machine.preparers()
        return (isinstance(device.address, model.MdevAddress)
                or identity.is_of_variant(device.alias, '') is not None)

    def sweep(self, host: model.Host, held: collections.abc.Callable[
            [], collections.abc.Collection[model.Address]],
            aside: Aside, awaited: collections.abc.Callable[
                [collections.abc.Collection[model.Address], model.Host],
                collections.abc.Collection[model.Address]]) -> bool:
        """Take back what was made ready and nobody has any more.

        The kernel does not remove an mdev as long as a program has it open,
        and waits for that. So this, too, goes on beside where it takes long.

        :param host: as it is
        :param held: what somebody has or is about to; asked after what is
            ready has been looked up, so that nothing that is new is taken for
            left over
        :param awaited: of what nobody holds on a Host, what somebody may come
            back for
        :returns: whether there was something, so that the host is another
        """
        given = tuple(self._given)
        preparers = self._machine.preparers()
        ready = {name: self._ready(preparer, host)
                 for name, preparer in preparers.items()}
        gone = set(given).difference(*ready.values())
        somebodys = set(held() if gone or any(ready.values()) else ())
        self._given.difference_update(gone - somebodys)
        left = [(name, preparers[name], address) for name in ready
                for address in sorted(ready[name] - somebodys)]
        nobodys = [address for *_preparer, address in left]
        if left:
            stay = awaited(nobodys, host)
            left = [entry for entry in left if entry[-1] not in stay]
        if not self._releasing.is_busy():
            self._unreleased = []
        found = bool(left) and self._releasing.do(
            lambda: self._sweep_aside(left, nobodys, aside, awaited))
        self._swept.say([
            (logging.WARNING, f'{thing} is nobody\'s and is not taken back '
             'yet: the kernel waits, for a program that has it open as a '
             'rule; what else is left over waits as well')
            for thing in self._being_released]
            if self._releasing.is_busy() else self._unreleased)
        return found

    def _sweep_aside(self, left, nobodys, aside, awaited) -> None:
        lines: list[said.Line] = []
        for name, preparer, address in left:
            with aside((address,)) as is_free:
                # The one before it can have taken hours.
                host = self._machine.read_whatever_reset()
                if (is_free and address in self._ready(preparer, host)
                        and address not in awaited(nobodys, host)):
                    self._being_released = (f'{name} {address}',)
                    lines.extend(_release(name, preparer, address))
                    self._being_released = ()
                    nobodys.remove(address)
                    self._machine.forget()
        self._unreleased = lines

    def _ready(self, preparer, host) -> set[model.Address]:
        """What a kind has made ready, also what no entry names any more."""
        ready = set(preparer.prepared(host))
        if isinstance(preparer, kind.Inspector):
            ready.update(filter(preparer.is_ready, tuple(self._given)))
        return ready

    def _inspectors(self) -> list[kind.Inspector]:
        return [preparer for preparer in self._machine.preparers().values()
                if isinstance(preparer, kind.Inspector)]

    def _host_of(self, hostdevs) -> model.Host | None:
        """The Host that these are of; None if they do without.

        :raises errors.TreeError: if nobody knows whether they are there
        """
        try:
            return self._lately_for(hostdevs) or self._machine.read()
        except errors.TreeError:
            if any(isinstance(device.address, model.MdevAddress)
                   for device in hostdevs):
                raise
            # Functions are there without us.
            return None

    def _lately_for(self, hostdevs) -> model.Host | None:
        """The Host a moment ago, if that does: nothing makes these ready."""
        host = self._machine.lately()
        if not host:
            return None
        plain = {address for device in host.devices
                 for region in device.regions for unit in region.units
                 for address in unit
                 if region.kind not in self._machine.preparers()}
        return host if plain.issuperset(
            device.address for device in hostdevs) else None

    def hand_over(self, hostdevs: collections.abc.Collection[hostdev.Hostdev],
                  held: collections.abc.Container[model.Address]) -> bool:
        """Leave nobody's traces in what a server is to have.

        What is ready is so for somebody who had it before, and is taken back;
        and it is reset, unless it has been since.

        :param hostdevs: which nobody else gets meanwhile
        :param held: what domains hold; a server can have had it before
        :returns: whether it can have them; those that cannot be reset are
            not offered any more
        :raises errors.AccelError: if something cannot be taken back
        """
        addresses = {device.address for device in hostdevs}
        # Else also what is refused for its reset, which may work by now.
        host = (self._lately_for(hostdevs)
                or self._machine.read_whatever_reset())
        if self._take_back(host, {address for address in addresses
                                  if address not in held}):
            host = self._machine.read_whatever_reset()
        return all([
            self._resets.reset(self._machine.tree, host, unit)
            for unit in resets.units(host)
            if addresses.intersection(unit)
            and not any(address in held for address in unit)])

    def _take_back(self, host, addresses) -> bool:
        """Whether any of these was ready."""
        ready = [(preparer, address)
                 for preparer in self._machine.preparers().values()
                 for address in sorted(
                     addresses & set(preparer.prepared(host)))]
        for preparer, address in ready:
            try:
                preparer.release(address)
            except OSError as error:
                raise errors.AssignmentError(
                    f'device {address}', 'it cannot be taken back from '
                    f'who had it: {error}') from None
            finally:
                self._machine.forget()
        return bool(ready)

    def reset_free(self, host: model.Host, held: collections.abc.Callable[
            [], collections.abc.Collection[model.Address]],
            aside: Aside) -> bool:
        """Reset what nobody has any more, so that it is ready for the next.

        Where that takes long it goes on beside, and what comes of it is seen
        the next time.

        :param host: as it is
        :param held: as in :meth:`sweep`
        :returns: whether there was something, so that the host is another
        """
        if self._resets.refused():
            # It may work by now.
            host = self._machine.read_whatever_reset()
        self._resets.forget(host)
        somebodys = held()
        self._resets.used(somebodys)
        due = self._resets.due(host, somebodys, _patience())
        return bool(due) and self._beside.do(
            lambda: self._reset_aside(due, aside))

    def _reset_aside(self, units, aside) -> None:
        for unit in units:
            with aside(unit) as is_free:
                if not is_free:
                    continue
                # Where some do not answer the last has its turn minutes after
                # the first, and somebody can have bound a driver meanwhile.
                host = self._machine.read_whatever_reset()
                if unit in self._resets.due(host, (), _patience()):
                    self._resets.reset(self._machine.tree, host, unit)


def _patience() -> float:
    """Seconds until a reset that failed is tried again."""
    return CONF.nova_accel.check_interval


def _serving(offered, device) -> providers.Offered | None:
    return providers.serving(offered, device.alias, device.address)


def _offered(host, node) -> tuple[providers.Offered, ...]:
    return providers.offered(host, node.uuid, node.name)


def _check_there(hostdevs, host, offered) -> None:
    """Check that a guest can have what it is to have.

    :raises errors.AssignmentError: if it is not there, and cannot be made
    """
    assignment.check_there({device.address: device.ids
                            for device in hostdevs}, host)
    for device in hostdevs:
        # What an entry named once, a server keeps, if it is there.
        if not (host.has(device.address)
                or _serving(offered, device)):
            raise errors.AssignmentError(
                f'device {device.address}', 'it is not there, and no entry '
                'names what it could be made of')


def _affected(item, host) -> set[model.Address]:
    """The devices that change when something is done to a Region.

    Where it is all that its card has to give away, these are all functions of
    the card, whoever gives them away.
    """
    units = {address for unit in item.region.units for address in unit}
    if item.region.variant:
        return units
    return units | {function.address for function in host.functions
                    if item.device.address in (function.address,
                                               function.physfn)}


def _check_heeded(item, wishes) -> None:
    """Check that nothing is wished that nobody is going to do."""
    heeds = loader.load()[item.region.kind].wishes
    if kind.MUST_HEED & set(wishes) - heeds:
        raise errors.AssignmentError(
            f'device {item.device.address} ({item.device.ids})',
            f'is of kind {item.region.kind}, into which nothing can be '
            'programmed', 'have the profile ask for FPGAs by class or trait')


def _check_wishes(device, host, wishes) -> None:
    """Check that nothing is wished of a device that is withheld."""
    refusal = next((refusal for refusal in host.refusals
                    if refusal.address == device.address), None)
    if refusal and kind.MUST_HEED & set(wishes):
        raise errors.AssignmentError(
            f'device {refusal.address} ({refusal.ids})',
            f'cannot be programmed: {refusal.reason}', refusal.remedy)


def _release(name: str, preparer: kind.Preparer, address: model.Address,
             ) -> collections.abc.Iterator[tuple[int, str]]:
    try:
        preparer.release(address)
    except Exception as error:
        # Of one device, or of one kind: the others go on.
        yield logging.WARNING, (f'{name} {address} is nobody\'s and cannot be '
                                f'taken back: {error}')
    else:
        LOG.info('Took back %s %s, which nobody has', name, address)


