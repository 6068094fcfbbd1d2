# SPDX-License-Identifier: Apache-2.0
"""The host's fabric manager: fmpm's stand-in, and which card is a module."""

import json
import time

import pytest

from nova_accel.core.fabric import fmpm as command
from nova_accel.core.fabric import manager
from nova_accel.host import fabric
from nova_accel.host import loader
from nova_accel.host import operations
from nova_accel.host import reader
from tests import fmpm
from tests.unit import build

_CARDS = {1: '0000:86:00.0', 2: '0000:b8:00.0', 3: '0000:87:00.0',
          4: '0000:bb:00.0'}
_PARTITIONS = {0: (1, 2, 3, 4), 3: (1, 3), 4: (2, 4), 7: (1,)}


def _functions(drivers='nvidia', ids='10de:2330', cards=_CARDS):
    return [build.function(address, ids, driver=drivers)
            for address in cards.values()]


class _Machine:
    def __init__(self, folder, **state):
        self.manager = fmpm.FabricManager(folder, **{
            'partitions': _PARTITIONS, 'addresses': _CARDS, **state})
        self.kept = folder / 'kept' / 'host.json'
        self.option = self.manager.option()
        self.switches = self.start()

    def start(self):
        """Return what a new nova-compute has."""
        switches = fabric.Switches(
            lambda: operations.Operations('/nowhere'), self.kept)
        assert switches.configure(self.option) is None
        return switches


@pytest.fixture
def machine(tmp_path):
    return _Machine(tmp_path)


def _set(*modules):
    return frozenset(_CARDS[module] for module in modules)


def test_partitions_and_their_state(machine):
    found = machine.switches.locate(_functions())
    assert found.cards == {number: _set(*modules)
                           for number, modules in _PARTITIONS.items()}
    assert found.problems == ()
    machine.switches.fabric.activate(3)
    assert not found.find([*_set(1, 3)]).is_active
    machine.switches.refresh()
    assert machine.switches.locate(_functions()).find(
        [*_set(1, 3)]).is_active
    assert machine.manager.active == [3]


def test_manager_is_asked_once_in_a_round(machine):
    for _round in range(3):
        for _time in range(5):
            machine.switches.locate(_functions())
        machine.switches.refresh()
    # One at the first time, and one each round.
    assert machine.manager.log() == [
        ['-l'], ['--get-nvlink-failed-devices']] * 4


def test_host_without_a_manager_pays_nothing(monkeypatch):
    monkeypatch.setattr(loader, 'load_fabric_managers', None)
    switches = fabric.Switches(None)
    assert switches.configure('') is None
    switches.refresh()
    assert switches.locate(None).cards == {}


def test_manager_that_does_not_answer(machine):
    machine.manager.stop()
    found = machine.switches.locate(_functions())
    assert found.cards == {}
    [problem] = found.problems
    assert problem.startswith('[nova_accel] fabric_manager: fmpm: list '
                              'partitions: fmpm ended with 247 and said ')
    machine.manager.start()
    machine.switches.refresh()
    assert machine.switches.locate(_functions()).problems == ()
    machine.manager.stop()
    machine.switches.refresh()
    found = machine.switches.locate(_functions())
    # The last list is still true of what can be joined.
    assert len(found.cards) == 4
    assert len(found.problems) == 1


def test_manager_that_hangs_is_asked_less_often(machine, monkeypatch):
    monkeypatch.setattr(command, 'LIST_TIMEOUT', 3)
    machine.manager.set(hangs='before')
    for _round in range(5):
        machine.switches.refresh()
    assert machine.manager.log() == [['-l']]
    monkeypatch.setattr(fabric.time, 'monotonic',
                        lambda now=time.monotonic: now() + 100)
    machine.manager.set(hangs='')
    machine.switches.refresh()
    assert machine.switches.locate(_functions()).problems == ()


def test_modules_are_kept_while_guests_have_the_cards(machine):
    assert len(machine.switches.locate(_functions()).cards) == 4
    machine.manager.set(addresses={})
    later = machine.start()
    assert len(later.locate(_functions('vfio-pci')).cards) == 4
    assert len(later.locate(_functions()).cards) == 4


def test_modules_of_a_machine_with_other_cards_are_not_used(machine):
    machine.switches.locate(_functions())
    # It is not certain any more which card has which address.
    for other in (_functions('vfio-pci', '10de:2335'),
                  _functions('vfio-pci')[1:]):
        found = machine.start().locate(other)
        assert found.cards == {}
        assert 'no card is known for module 1' in found.problems[0]
    # A card that is lost while nova-compute runs changes no other.
    assert machine.switches.locate(_functions('vfio-pci')[1:]).cards == {
        4: _set(2, 4)}


def _start_with(machine, tmp_path, before):
    """Start with a modules_command that does something before."""
    smi = tmp_path / 'smi'
    smi.write_text(f'#!/bin/sh\n{before}\n'
                   f'exec {machine.manager.nvidia_smi}\n')
    smi.chmod(0o755)
    machine.option = machine.manager.option(modules_command=[str(smi)])
    return machine.start()


def test_modules_are_asked_for_when_cards_become_visible(machine, tmp_path):
    asked = tmp_path / 'asked'
    switches = _start_with(machine, tmp_path, f'echo >>{asked}')
    for functions, times in (
            (_functions('vfio-pci'), 0), (_functions()[:1], 1),
            (_functions()[:1], 1), (_functions(), 1),
            (_functions('vfio-pci'), 1), (_functions(), 1)):
        found = switches.locate(functions)
        assert (asked.read_text() if asked.exists() else ''
                ).count('\n') == times
    assert len(found.cards) == 4


_SAME_MODULE = ''.join(
    f'<gpu id="0000:0{bus}:00.0"><gpu_module_id>1</gpu_module_id></gpu>'
    for bus in (1, 2))


@pytest.mark.parametrize('script, says', [
    ('echo mismatch; exit 18', "ended with 18 and said 'mismatch'"),
    (f"echo '{_SAME_MODULE}'", 'have the same module, 1')])
def test_modules_command_that_fails(machine, tmp_path, script, says):
    smi = tmp_path / 'smi'
    smi.write_text(f'#!/bin/sh\n{script}\n')
    smi.chmod(0o755)
    machine.option = machine.manager.option(modules_command=[str(smi)])
    switches = machine.start()
    for _time in range(2):
        found = switches.locate(_functions())
        assert found.cards == {}
        assert found.problems[0].startswith(
            '[nova_accel] fabric_manager: modules_command: ')
        assert says in found.problems[0]


def test_modules_command_is_run_again_after_a_failure(machine, tmp_path,
                                                      monkeypatch):
    flag = tmp_path / 'works'
    switches = _start_with(machine, tmp_path, f'test -e {flag} || exit 1')
    assert switches.locate(_functions()).cards == {}
    flag.touch()
    assert switches.locate(_functions()).cards == {}
    monkeypatch.setattr(fabric.time, 'monotonic',
                        lambda now=time.monotonic: now() + 100)
    found = switches.locate(_functions())
    assert (len(found.cards), found.problems) == (4, ())


def test_list_of_failed_links_that_fails_is_only_a_problem(machine):
    fmpm_path = machine.manager.fmpm
    older = machine.kept.parent.parent / 'older'
    older.write_text('#!/bin/sh\ntest $1 = --get-nvlink-failed-devices && '
                     f'exit 255\nexec {fmpm_path} "$@"\n')
    older.chmod(0o755)
    machine.option = machine.manager.option(command=[str(older)])
    switches = machine.start()
    switches.ask()
    found = switches.locate(_functions())
    assert len(found.cards) == 4
    [problem] = found.problems
    assert 'fmpm: list failed links: fmpm ended with 255' in problem
    machine.manager.set(waits=True)
    with pytest.raises(manager.FabricError) as caught:
        switches.ask()
    assert caught.value.failure is manager.Failure.NOT_READY


def test_cards_without_a_partition_are_withheld(machine):
    assert machine.switches.withheld(_functions()) == {}
    machine.manager.set(gone=[3])
    machine.switches.refresh()
    assert [*map(str, machine.switches.withheld(_functions()))] == [_CARDS[3]]


def test_configured_modules(machine):
    machine.option = machine.manager.option(
        modules={**_CARDS, 1: _CARDS[3], 3: _CARDS[1]})
    found = machine.start().locate(_functions())
    assert found.cards == {4: _set(2, 4)}
    assert len(found.problems) == 2
    assert ('module 1 is 0000:87:00.0 as configured, but 0000:86:00.0 as the '
            'driver of the host said' in found.problems[0])


def test_file_of_modules_that_cannot_be_written(machine, caplog):
    machine.kept.parent.write_text('')
    assert len(machine.switches.locate(_functions()).cards) == 4
    assert f'Could not write {machine.kept}' in caplog.text


def test_changed_option_is_taken_over(machine):
    machine.switches.locate(_functions())
    error = machine.switches.configure('{"command": "x"}')
    assert 'command is not a list of words' in str(error)
    assert machine.switches.configure('{"command": "x"}') is error
    assert machine.switches.locate(_functions()).cards == {}
    assert machine.switches.configure(machine.option) is None
    assert len(machine.switches.locate(_functions()).cards) == 4
    assert machine.switches.configure('') is None
    with pytest.raises(manager.FabricError, match='is not set'):
        machine.switches.ask()


def test_manager_of_another_package_that_fails(machine, monkeypatch):
    class Broken:
        def __init__(self, *_arguments):
            pass

        def partitions(self):
            raise KeyError('gpu')

    opens = {'broken': Broken, 'closed': lambda *arguments: 1 / 0}
    monkeypatch.setattr(loader, 'load_fabric_managers', lambda: {
        name: manager.FabricManager(open=opened)
        for name, opened in opens.items()})
    option = {'manager': 'closed', 'modules': {'1': _CARDS[1]}}
    assert ("its manager cannot be opened: ZeroDivisionError('division by "
            "zero')" in str(machine.switches.configure(json.dumps(option))))
    option['manager'] = 'broken'
    assert machine.switches.configure(json.dumps(option)) is None
    found = machine.switches.locate(_functions())
    assert (found.cards, found.problems) == ({}, (
        "[nova_accel] fabric_manager: 'gpu'",))
    with pytest.raises(manager.FabricError, match='activate'):
        machine.switches.fabric.activate(3)


def test_links_of_the_host(machine):
    tree = build.sysfs({
        f'pci0000:{address[5:7]}/{address}': {
            'vendor': '0x10de', 'device': '0x2330', 'class': '0x030200\n',
            'driver': '../../../bus/pci/drivers/nvidia'}
        for address in _CARDS.values()})
    host = reader.read(tree, switched=machine.switches.locate,
                       links=fabric.model.Links((_set(1, 2),)))
    assert set(host.links.partitions) == {
        _set(*modules) for modules in _PARTITIONS.values()}
    [problem] = host.problems
    assert problem.startswith('[nova_accel] link_domains: the partition '
                              '0000:86:00.0 0000:b8:00.0 is not used: ')


def test_largest_list_is_not_cut(machine):
    modules = tuple(range(1, 17))
    machine.manager.set(partitions=dict.fromkeys(range(64), modules))
    [*found] = machine.switches.fabric.partitions()
    assert len(found) == 64
    assert found[0].modules == set(modules)


@pytest.mark.parametrize('state, failure', [
    ({'in_reset': [1]}, manager.Failure.OTHER),
    ({'bad_links': [3]}, manager.Failure.LINK_ERROR),
    ({'mode': 0}, manager.Failure.NOT_SUPPORTED),
    ({'skew': 'connect'}, manager.Failure.OTHER),
    ({'gone': [3]}, manager.Failure.UNKNOWN_PARTITION),
    ({'waits': True}, manager.Failure.NOT_READY),
    ({'host': '10.0.0.1'}, manager.Failure.UNREACHABLE)])
def test_activation_that_fails(machine, state, failure):
    machine.manager.set(**state)
    with pytest.raises(manager.FabricError) as caught:
        machine.switches.fabric.activate(3)
    assert caught.value.failure is failure
    assert str(caught.value).startswith(
        '[nova_accel] fabric_manager: fmpm: activate partition 3: ')
    assert machine.manager.active == []


@pytest.mark.parametrize('hangs, active', [('before', []), ('after', [3])])
def test_activation_that_hangs(machine, hangs, active):
    machine.option = machine.manager.option(timeout=1)
    machine.manager.set(hangs=hangs)
    began = time.monotonic()
    with pytest.raises(manager.FabricError) as caught:
        machine.start().fabric.activate(3)
    assert caught.value.failure is manager.Failure.TIMED_OUT
    assert time.monotonic() - began < 30
    assert machine.manager.active == active


def test_links_that_have_failed(machine):
    machine.manager.set(links={3: 17}, failed_switches={'SWX-1': [4]})
    found = {one.id: one for one in machine.switches.fabric.partitions()}
    assert [member.module for member in found[3].members
            if member.has_failed_links] == [3]
    assert not any(member.has_failed_links for member in found[4].members)
    assert machine.switches.fabric.failed_links() == (
        manager.FailedLinks(None, 'SWX-1', (4,), True),)


def test_command_that_does_not_exist(machine):
    machine.option = machine.manager.option(command=['/nowhere/fmpm'])
    with pytest.raises(manager.FabricError, match='No such file') as caught:
        machine.start().fabric.partitions()
    assert caught.value.failure is manager.Failure.UNREACHABLE


def test_faults_of_the_stand_in_are_those_of_its_seed(tmp_path):
    def outcomes(seed):
        folder = tmp_path / f'{seed}-{len([*tmp_path.iterdir()])}'
        folder.mkdir()
        machine = _Machine(folder, seed=seed, rate=0.5)
        found = []
        for number in (3, 4, 7) * 4:
            for method in (machine.switches.fabric.activate,
                           machine.switches.fabric.deactivate):
                try:
                    method(number)
                    found.append(None)
                except manager.FabricError as error:
                    found.append(error.failure)
        return found

    first = outcomes(1)
    assert first == outcomes(1) != outcomes(2)
    assert {None, manager.Failure.TIMED_OUT,
            manager.Failure.UNREACHABLE} <= {*first}


def test_operation_checks_its_arguments(machine):
    run = operations.Operations('/nowhere').run_fabric_manager
    for arguments in (('{}', command.LIST), (machine.option, '-l'),
                      (machine.option, command.ACTIVATE, ['3']),
                      (json.dumps({'manager': 'other'}), command.LIST)):
        with pytest.raises((ValueError, fabric.errors.EntryError)):
            run(*arguments)
    assert machine.manager.log() == []
