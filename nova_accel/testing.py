# SPDX-License-Identifier: Apache-2.0
"""Tests that every kind and every fabric manager must pass.

They are the contracts of core.kind and core.fabric.manager. A package that
defines a kind runs them on a recorded machine::

    class MyKindTest(nova_accel.testing.KindTests, unittest.TestCase):
        kind = 'mine'
        tree = 'tests/machine.json'      # from "nova-accel host record"
        entries = [{'kind': 'mine', 'vendor_id': '1af4'}]

One that defines a fabric manager runs them on a manager that it can stop::

    class MyManagerTest(nova_accel.testing.FabricTests, unittest.TestCase):
        manager = 'mine'

        def start(self):
            ...
            return '{"manager": "mine", "modules": {"1": "0000:1b:00.0"}}'

        def stop(self): ...

        def restart(self): ...

They run under unittest, pytest and stestr alike.
"""

import collections.abc
import contextlib
import json
import os
import pathlib
import tempfile
import time
import typing
import unittest

from nova_accel.core import errors
from nova_accel.core import hostdev
from nova_accel.core import kind as kinds
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.assignment import assign
from nova_accel.core.assignment import assigned_units
from nova_accel.core.device_spec import spec_entry
from nova_accel.core.fabric import definition
from nova_accel.core.fabric import manager as fabric_manager
from nova_accel.core.placement import inventory
from nova_accel.host import loader
from nova_accel.host import operations
from nova_accel.host import reader
from nova_accel.host import tree as trees

#: Uuid and name of a compute node.
ROOT, NODE = '7a2c7f0e-5d53-4d2e-9c02-7d9d3a5f6b10', 'host1'
#: Uuid of a server.
ONE = '5c1de1e0-8f0a-4c57-9a35-6a3e86c0c8a1'

#: Contents that a file of sysfs should not have.
NONSENSE = (None, '', '\n', '\0\ufffd\n', 'x', '-1\n', '0\n', '9' * 40,
            '../../..', 'a b : c\n' * 500)
#: Values that a key of an entry should not have.
JUNK: tuple[typing.Any, ...] = (
    '', ' ', 'x' * 1000, '\0', '../x', -1, 10 ** 30, 1.5, True, [], {}, [[]],
    {'a': [None]}, ['x', 1])


if typing.TYPE_CHECKING:
    _TestCase = unittest.TestCase
else:
    _TestCase = object


class KindTests:
    """A mixin of unittest.TestCase; set kind, tree and entries."""

    #: The name of the kind's entry point.
    kind: str
    #: Path of a recording that ``nova-accel host record`` wrote.
    tree: str | os.PathLike[str]
    #: Entries, as in ``device_spec``, that offer some of its devices.
    entries: collections.abc.Sequence[
        collections.abc.Mapping[str, typing.Any]]
    #: Whether release undoes prepare; False for a kind that programs devices.
    releases = True
    #: The device config of a server.
    config: typing.ClassVar[kinds.DeviceConfig] = kinds.DeviceConfig()

    def kernel(self, sysfs: str,
               ) -> contextlib.AbstractContextManager[object]:
        """Return a context that simulates the kernel below a directory.

        Override it if the kind's Preparer relies on the kernel's reaction to
        a write.
        """
        return contextlib.nullcontext()

    # Entries

    def test_is_found_by_its_entry_point(self) -> None:
        assert self.kind in loader.load(), (
            f'no entry point {self.kind} in {kinds.NAMESPACE}')

    def test_entries_are_of_this_kind(self) -> None:
        assert {entry.kind for entry in self._parsed()} == {self.kind}
        # Settings identify Regions, so they must be hashable.
        hash(tuple(entry.settings for entry in self._parsed()))

    def test_invalid_value_of_a_key_is_reported_with_the_key(self) -> None:
        for key in loader.load()[self.kind].keys:
            for value in JUNK:
                entries, broken = reader.parse(
                    [json.dumps({**self.entries[0], key: value})])
                assert len(entries) + len(broken) == 1
                for entry in entries:
                    hash(entry.settings)
                for error in broken:
                    assert key in str(error) and '\n' not in str(error)

    # The Enumerator

    def test_entries_offer_units(self) -> None:
        regions = self._regions(self._read())
        assert any(region.total for region in regions), 'nothing is offered'
        for region in regions:
            assert region.kind == self.kind
            assert naming.is_resource_class(region.resource_class), region
            assert all(map(naming.is_trait, region.traits)), region
            if not region.mdevs:
                assert len(set(region.units)) == len(region.units), (
                    f'{region.name} has a unit twice')

    def test_reading_twice_returns_the_same_host(self) -> None:
        assert self._read() == self._read()

    def test_names_and_uuids_of_regions_are_unique(self) -> None:
        offered = self._offered(self._read())
        assert len({item.uuid for item in offered}) == len(offered)
        assert len({item.name for item in offered}) == len(offered)

    def test_without_entries_nothing_is_offered(self) -> None:
        assert self._regions(reader.read(self._recording(), [])) == []

    def test_malformed_file_hides_no_other_function(self) -> None:
        whole = self._read()
        for path in sorted(self._files_read()):
            for text in NONSENSE:
                host = self._read(_Changed(self._recording(), path, text))
                self._check_sane(host, whole, f'{path} has {text!r:.40}')

    def test_unexpected_names_in_a_directory_hide_no_other_function(
            self) -> None:
        whole = self._read()
        for path in sorted(self._folders_read()):
            for more in ((), ('\ufffd', 'x:y', '-1', 'a b')):
                tree = _Changed(self._recording(), path, names=more)
                self._check_sane(self._read(tree), whole,
                                 f'{path} has {more}')

    def test_reading_writes_nothing(self) -> None:
        with self._machine() as tree:
            before = _contents(tree.sysfs)
            self._read(tree)
            assert _contents(tree.sysfs) == before

    # The Preparer

    def test_prepared_units_can_be_released(self) -> None:
        with self._machine() as tree:
            for item in self._prepare_one_of_each(tree):
                assert item is not None
            self._release_all(tree)

    def test_second_prepare_changes_nothing(self) -> None:
        with self._machine() as tree:
            preparer = self._preparer(tree)
            if not preparer:
                return
            item, device = next(self._plans(tree))
            preparer.prepare(device, item, self.config)
            ready = _contents(tree.sysfs)
            preparer.prepare(device, item, self.config)
            # Also after a restart of nova-compute.
            restarted = self._preparer(tree)
            assert restarted
            restarted.prepare(device, item, self.config)
            assert _contents(tree.sysfs) == ready

    def test_prepare_in_a_recording_raises(self) -> None:
        tree = self._recording()
        preparer = self._preparer(tree)
        if not (preparer and self.releases):
            return
        item, device = next(self._plans(tree))
        try:
            preparer.prepare(device, item, self.config)
        except errors.AccelError:
            return
        raise AssertionError('prepare did not raise')

    # Helpers

    def _parsed(self) -> list[spec_entry.Entry]:
        parsed, broken = reader.parse(map(json.dumps, self.entries))
        assert not broken, broken
        return parsed

    def _recording(self) -> trees.Tree:
        return trees.open_tree(self.tree)

    @contextlib.contextmanager
    def _machine(self) -> collections.abc.Iterator[trees.Directory]:
        """Write the recording to a directory; return the directory's Tree."""
        recording = self._recording()
        if not isinstance(recording, trees.Recording):
            raise AssertionError(f'{self.tree} is not a recording')
        with tempfile.TemporaryDirectory() as path:
            recording.write(path)
            sysfs = os.path.join(path, 'sys')
            with self.kernel(sysfs):
                yield trees.Directory(sysfs)

    def _read(self, tree: trees.Tree | None = None,
              by: trees.Tree | None = None) -> model.Host:
        """Read the Host.

        :param tree: opens the kind
        :param by: for everything else that is read; by default ``tree``
        """
        opened = loader.load()[self.kind].open(tree or self._recording())
        return reader.read(by or tree or self._recording(), self._parsed(),
                           (), {self.kind: opened})

    def _files_read(self) -> set[str]:
        return self._read_noted().files

    def _folders_read(self) -> set[str]:
        return self._read_noted().folders

    def _read_noted(self) -> '_Noted':
        noted = _Noted(self._recording())
        self._read(noted, by=self._recording())
        return noted

    def _check_sane(self, host: model.Host, whole: model.Host,
                    cause: str) -> None:
        for refusal in host.refusals:
            assert ' failed: ' not in refusal.reason, (cause, refusal)
            assert '\n' not in refusal.reason, (cause, refusal)
        for region in self._regions(host):
            assert naming.is_resource_class(region.resource_class), cause
            assert all(map(naming.is_trait, region.traits)), cause
        assert {function.address for function in host.functions} <= {
            function.address for function in whole.functions}, cause

    def _regions(self, host: model.Host) -> list[model.Region]:
        return [region for device in host.devices
                for region in device.regions]

    def _offered(self, host: model.Host) -> tuple[inventory.Offered, ...]:
        return inventory.NodeInventory(
            host, inventory.Node(ROOT, NODE)).offered

    def _preparer(self, tree: trees.Tree) -> kinds.Preparer | None:
        opened = loader.load()[self.kind].open(tree)
        return opened if isinstance(opened, kinds.Preparer) else None

    def _plans(self, tree: trees.Tree, server: str = ONE,
               ) -> collections.abc.Iterator[
                   tuple[inventory.Offered, hostdev.Hostdev]]:
        """Yield each Region that has units, with a Hostdev of it."""
        for item in self._offered(self._read(tree)):
            if item.region.total:
                grants = assign.assign(
                    {item.uuid: {item.region.resource_class: 1}},
                    assign.Wanted({}), [item], {}, server)
                yield item, assigned_units.to_hostdevs(grants)[0]

    def _prepare_one_of_each(self, tree: trees.Tree,
                             ) -> collections.abc.Iterator[inventory.Offered]:
        preparer = self._preparer(tree)
        if not preparer:
            return
        done = set()
        for item, device in self._plans(tree):
            if item.device.address in done:
                # A card may support only one of its Regions at a time.
                continue
            done.add(item.device.address)
            preparer.prepare(device, item, self.config)
            restarted = self._preparer(tree)
            assert restarted
            ready = restarted.prepared(self._read(tree))
            assert device.address in ready or not self.releases, (
                f'{device.address} is not ready')
            assert not isinstance(preparer, kinds.Inspector) or (
                preparer.is_ready(device.address) is not False), (
                f'is_ready of {device.address} is False after prepare')
            yield item

    def _release_all(self, tree: trees.Tree) -> None:
        preparer = self._preparer(tree)
        if not preparer:
            return
        for address in list(preparer.prepared(self._read(tree))):
            preparer.release(address)
            assert not isinstance(preparer, kinds.Inspector) or (
                not preparer.is_ready(address)), (
                f'is_ready of {address} is True after release')
        assert not preparer.prepared(self._read(tree)), (
            'units are prepared after release')


class FabricTests(_TestCase):
    """A mixin of unittest.TestCase; set manager, write the three methods.

    Use a simulation, or a machine without guests: partitions are activated.
    """

    #: The name of the manager's entry point.
    manager: str
    #: Whether partitions can be activated for virtual functions.
    takes_functions = False
    #: Seconds within which each call has to end.
    limit = 60

    def start(self) -> str:
        """Start the manager; no partition may be active.

        It needs two partitions without a common card, and one that shares a
        card with each of them.

        :returns: a value of ``[nova_accel] fabric_manager``
        """
        raise NotImplementedError

    def stop(self) -> None:
        """Stop the manager, so that it does not answer."""
        raise NotImplementedError

    def restart(self) -> None:
        """Restart the manager, which may lose what it knew."""
        raise NotImplementedError

    def setUp(self) -> None:
        super().setUp()
        self._option = self.start()
        self._fabric = self._open()

    def test_is_found_by_its_entry_point(self) -> None:
        assert self.manager in loader.load_fabric_managers(), (
            f'no entry point {self.manager} in {fabric_manager.NAMESPACE}')
        assert self._settings().manager == self.manager

    def test_partitions_have_numbers_and_members(self) -> None:
        found = self._fabric.partitions()
        assert len({one.id for one in found}) == len(found)
        for one in found:
            assert type(one.id) is int, one
            assert len(one.modules) == len(one.members) > 0, one
            assert all(type(module) is int for module in one.modules), one
        self._three()

    def test_listing_changes_nothing(self) -> None:
        first, second, _both = self._three()
        self._fabric.activate(first)
        before = self._fabric.partitions()
        for fabric in (self._fabric, self._open()):
            # With their members in the same order.
            assert list(fabric.partitions()) == list(before)

    def test_active_partition_is_listed_whoever_activated_it(self) -> None:
        first, second, _both = self._three()
        self._fabric.activate(first)
        assert self._active() == {first}
        self._open().activate(second)
        assert self._active() == {first, second}

    def test_active_partition_cannot_be_activated(self) -> None:
        first, _second, _both = self._three()
        self._fabric.activate(first)
        for fabric in (self._fabric, self._open()):
            self._refused(fabric_manager.Failure.IN_USE, fabric.activate,
                          first)
        assert self._active() == {first}

    def test_partition_with_a_card_in_use_cannot_be_activated(self) -> None:
        first, second, both = self._three()
        self._fabric.activate(second)
        self._refused(fabric_manager.Failure.IN_USE, self._fabric.activate,
                      both)
        self._fabric.activate(first)
        assert self._active() == {first, second}

    def test_only_the_deactivated_partition_becomes_inactive(self) -> None:
        first, second, both = self._three()
        self._fabric.activate(first)
        self._fabric.activate(second)
        self._open().deactivate(first)
        assert self._active() == {second}
        self._fabric.deactivate(second)
        assert self._active() == set()
        self._fabric.activate(both)
        assert self._active() == {both}

    def test_inactive_partition_cannot_be_deactivated(self) -> None:
        first, second, both = self._three()
        self._fabric.activate(first)
        for other in (second, both):
            self._refused(fabric_manager.Failure.NOT_ACTIVE,
                          self._fabric.deactivate, other)
        assert self._active() == {first}

    def test_unknown_partition_is_refused(self) -> None:
        first, _second, _both = self._three()
        self._fabric.activate(first)
        known = {one.id for one in self._fabric.partitions()}
        for number in (max(known) + 1, 10 ** 6, -1):
            for method in (self._fabric.activate, self._fabric.deactivate):
                self._refused(fabric_manager.Failure.UNKNOWN_PARTITION,
                              method, number)
        assert self._active() == {first}

    def test_virtual_functions(self) -> None:
        found = {one.id: one for one in self._fabric.partitions()}
        _first, _second, both = self._three()
        functions = [model.PciAddress(0, 0xf0 + place, 0, 4)
                     for place, _one in enumerate(found[both].members)]
        if self.takes_functions:
            # One of each card.
            for wrong in (functions[:-1], [*functions, functions[0]]):
                self._refused(None, self._fabric.activate, both, wrong)
            assert self._active() == set()
            self._fabric.activate(both, functions)
            assert self._active() == {both}
        else:
            self._refused(fabric_manager.Failure.NOT_SUPPORTED,
                          self._fabric.activate, both, functions)
            assert self._active() == set()

    def test_failed_links_change_nothing(self) -> None:
        first, _second, _both = self._three()
        self._fabric.activate(first)
        try:
            for one in self._fabric.failed_links():
                assert isinstance(one, fabric_manager.FailedLinks), one
        except fabric_manager.FabricError as error:
            assert error.failure is fabric_manager.Failure.NOT_SUPPORTED, error
        assert self._active() == {first}

    def test_manager_that_does_not_answer(self) -> None:
        first, _second, _both = self._three()
        self.stop()
        for method, *arguments in (
                (self._fabric.partitions,), (self._fabric.activate, first),
                (self._fabric.deactivate, first),
                (self._fabric.restore, {first}),
                (self._fabric.failed_links,)):
            self._refused(fabric_manager.Failure.UNREACHABLE, method,
                          *arguments)

    def test_restart(self) -> None:
        """It knows the active partitions, takes them over, or has none."""
        first, second, both = self._three()
        self._fabric.activate(first)
        self._fabric.activate(second)
        self.restart()
        kept = {first, second}
        try:
            assert self._active() in (kept, set())
            kept = self._active()
        except fabric_manager.FabricError as error:
            assert error.failure is fabric_manager.Failure.NOT_READY, error
            self._refused(fabric_manager.Failure.NOT_READY,
                          self._fabric.activate, both)
            self._fabric.restore(kept)
        else:
            try:
                self._fabric.restore(kept)
            except fabric_manager.FabricError as error:
                assert error.failure is (
                    fabric_manager.Failure.NOT_SUPPORTED), error
        assert self._active() == kept

    def _settings(self) -> fabric_manager.Definition:
        settings = definition.parse(self._option,
                                    loader.load_fabric_managers())
        assert settings is not None
        return settings

    def _open(self) -> fabric_manager.Fabric:
        """Return a new object, as after a restart of nova-compute."""
        return loader.load_fabric_managers()[self.manager].open(
            self._settings(), operations.Operations('/nowhere'))

    def _three(self) -> tuple[int, int, int]:
        """Return two partitions, and one that shares cards with both."""
        found = self._fabric.partitions()
        for one in found:
            for other in found:
                for third in found:
                    if (not one.modules & other.modules
                            and one.modules & third.modules
                            and other.modules & third.modules):
                        return one.id, other.id, third.id
        raise AssertionError('start: it does not have these partitions')

    def _active(self) -> set[int]:
        return {one.id for one in self._open().partitions() if one.is_active}

    def _refused(self, failure: fabric_manager.Failure | None,
                 method: collections.abc.Callable[..., object],
                 *arguments: object) -> None:
        """Check that a call fails as it should, None for any failure."""
        began = time.monotonic()
        try:
            method(*arguments)
        except fabric_manager.FabricError as error:
            assert failure in (None, error.failure), (
                f'{error.failure}, not {failure}: {error}')
            assert '\n' not in str(error), f'several lines: {error}'
        else:
            raise AssertionError(
                f'{method.__name__} of {arguments} did not fail')
        assert time.monotonic() - began < self.limit, 'it took too long'


class _Through:
    """A Tree that reads from another one."""

    def __init__(self, tree: trees.Tree) -> None:
        self._tree = tree

    def names(self, path: str) -> list[str]:
        return self._tree.names(path)

    def text(self, path: str) -> str | None:
        return self._tree.text(path)

    def link(self, path: str) -> str | None:
        return self._tree.link(path)

    def has(self, path: str) -> bool:
        return self._tree.has(path)


class _Noted(_Through):
    """A Tree that notes the files and folders that are read."""

    def __init__(self, tree: trees.Tree) -> None:
        super().__init__(tree)
        self.files: set[str] = set()
        self.folders: set[str] = set()

    def names(self, path: str) -> list[str]:
        self.folders.add(path)
        return super().names(path)

    def text(self, path: str) -> str | None:
        self.files.add(path)
        return super().text(path)


class _Changed(_Through):
    """A Tree with another content of one file, or of one directory."""

    def __init__(self, tree: trees.Tree, path: str, text: str | None = None,
                 names: collections.abc.Iterable[str] | None = None) -> None:
        super().__init__(tree)
        self._path = path
        self._text = text
        self._names = names

    def names(self, path: str) -> list[str]:
        if path == self._path and self._names is not None:
            return sorted(self._names)
        return super().names(path)

    def text(self, path: str) -> str | None:
        if path == self._path and self._names is None:
            return self._text
        return super().text(path)


def _contents(directory: str) -> dict[str, str]:
    """Return contents of files and targets of links below a directory."""
    root = pathlib.Path(directory)
    return {str(path.relative_to(root)): (
        os.readlink(path) if path.is_symlink() else path.read_text())
        for path in sorted(root.rglob('*'))
        if path.is_symlink() or path.is_file()}
