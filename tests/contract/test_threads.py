# SPDX-License-Identifier: Apache-2.0
"""State that the threads of nova-compute share.

Since Nova 34 they are native threads. Each test runs a step of another thread
at the most harmful point.
"""

import logging
import threading
import types

import nova.conf
import pytest

from nova_accel.compute import log_once
from nova_accel.compute.state import device_claims
from nova_accel.compute.state import libvirt_domains
from nova_accel.compute.state import local_host
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.host import background
from nova_accel.host import libvirt_xml
from nova_accel.host import loader
from nova_accel.host import reader
from nova_accel.host import tree
from tests.contract import meanwhile

_ADDRESS = model.PciAddress(0, 0x81, 0, 0)
_DEVICE = hostdev.Hostdev(_ADDRESS, '')


@pytest.fixture(autouse=True)
def options():
    nova.conf.CONF([], project='nova', default_config_files=[])


@pytest.fixture
def opened(monkeypatch):
    """Return a list that gets each opened tree; the trees are empty."""
    found = []

    def open_tree(_root):
        found.append(tree.Recording())
        return found[-1]

    monkeypatch.setattr(tree, 'open_tree', open_tree)
    return found


def test_tree_is_there_with_its_kinds(monkeypatch, opened):
    """Another thread gets the tree after the kinds are loaded.

    Otherwise it could find no kind for a device.
    """
    other = meanwhile.Meanwhile(monkeypatch, local_host)
    looked_at = local_host.LocalHost()
    kind = types.SimpleNamespace(prepare=print, prepared=print, release=print)
    seen = []

    def open_all(_tree):
        other.do(lambda: seen.append((looked_at.tree, looked_at.preparers())))
        return {'x': kind}

    monkeypatch.setattr(loader, 'open_all', open_all)
    looked_at.read()
    other.end()
    assert seen == [(opened[0], {'x': kind})]


def test_tree_is_opened_once(monkeypatch, opened):
    """Two threads open the tree once; its kinds keep state."""
    other = meanwhile.Meanwhile(monkeypatch, local_host)
    looked_at = local_host.LocalHost()
    open_tree = tree.open_tree

    def open_slowly(root):
        if threading.current_thread() is threading.main_thread():
            other.do(looked_at.read)
        return open_tree(root)

    monkeypatch.setattr(tree, 'open_tree', open_slowly)
    looked_at.read()
    other.end()
    assert len(opened) == 1


def test_host_invalidated_while_stored_is_read_again(
        monkeypatch, opened):
    looked_at = local_host.LocalHost()
    assert looked_at.read() is looked_at.cached()

    def monotonic():
        monkeypatch.undo()
        looked_at.invalidate()
        return local_host.time.monotonic()

    monkeypatch.setattr(local_host, 'time', types.SimpleNamespace(
        monotonic=monotonic))
    looked_at.read()
    assert looked_at.cached() is None


def test_host_invalidated_while_read_is_read_again(
        monkeypatch, opened):
    looked_at = local_host.LocalHost()

    def read(*_args, **_kwargs):
        looked_at.invalidate()
        return model.Host()

    monkeypatch.setattr(reader, 'read', read)
    looked_at.read()
    assert looked_at.cached() is None


def test_runner_is_free_after_thread_fails_to_start(monkeypatch):
    one = background.Runner()
    with monkeypatch.context() as full:
        def start(_thread):
            raise RuntimeError("can't start new thread")

        full.setattr(threading.Thread, 'start', start)
        with pytest.raises(RuntimeError, match='new thread'):
            one.run(pytest.fail)
    assert not one.is_busy()
    done = []
    assert one.run(lambda: done.append(True))
    assert done


def test_finding_of_two_threads_is_logged_once():
    line = logging.INFO, 'Offered: 1 GPU'
    told = []

    class Log:
        def log(self, *args):
            told.append(args)
            if len(told) == 1:
                # Another thread logs the same finding.
                log_of_findings.log([line])

    log_of_findings = log_once.LogOnce(Log())
    log_of_findings.log([line])
    assert len(told) == 1


def test_holder_is_found_while_its_domain_is_redefined(monkeypatch):
    """A holder is found while its domain is redefined.

    The claim begins before the domain is undefined.
    """
    other = meanwhile.Meanwhile(monkeypatch, device_claims)
    defined = {'server': (_DEVICE,)}

    class Record:
        def read(self):
            if defined:
                other.do(undefine)
            return dict(defined)

    def undefine():
        held.claim(types.SimpleNamespace(uuid='server'), (_DEVICE,))
        defined.clear()

    held = device_claims.DeviceClaims(Record(), types.SimpleNamespace(
        remove=lambda consumer: None))
    assert held.holders_of([_ADDRESS]) == [('server', _DEVICE)]
    other.end()
    assert held.holders_of([_ADDRESS]) == [('server', _DEVICE)]


def test_lingering_claim_is_released_unless_an_operation_uses_it():
    server = types.SimpleNamespace(uuid='server')
    held = device_claims.DeviceClaims(types.SimpleNamespace(
        invalidate=lambda uuid: None), types.SimpleNamespace(
            remove=lambda consumer: None))
    held.claim(server, (_DEVICE,))
    found = held.lingering()
    # Meanwhile another operation has claimed the same devices.
    held.claim(server, (_DEVICE,))
    assert not held.release_lingering('server', found['server'])
    found = held.lingering()
    with held.operation(types.SimpleNamespace(uuid='server')):
        assert not held.release_lingering('server', found['server'])
    held.claim(server, (_DEVICE,))
    assert held.release_lingering('server', held.lingering()['server'])
    assert held.get(server) is None


def test_domain_can_be_invalidated_while_all_are_read(monkeypatch):
    """A thread reads all domains while an operation on a server ends."""
    there = [types.SimpleNamespace(UUIDString=lambda uuid=uuid: uuid)
             for uuid in ('one', 'two')]

    class Domain:
        @property
        def held(self):
            recorded.invalidate('two')
            return (_DEVICE,)

    monkeypatch.setattr(libvirt_xml, 'read_domain', lambda _domain,
                        _libvirt: Domain())
    recorded = libvirt_domains.LibvirtDomains(types.SimpleNamespace(
        list_instance_domains=lambda only_running: there))
    assert recorded.read() == {'one': (_DEVICE,), 'two': (_DEVICE,)}
