# SPDX-License-Identifier: Apache-2.0
"""Nova's read of the allocations of all resource providers of a host."""

from unittest import mock

from nova import exception
from nova.compute import pci_placement_translator
from nova.compute import provider_tree
from nova.compute import resource_tracker
import nova.conf
from oslo_config import fixture as config
import pytest

from nova_accel.compute import patches

NODE = mock.Mock(uuid='7c1b3d52-6f0e-4a7e-9d55-000000000001',
                 hypervisor_hostname='node')


@pytest.fixture
def options():
    with config.Config(nova.conf.CONF) as fixture:
        yield fixture.config


@pytest.fixture
def tracker(monkeypatch):
    """Return a real ResourceTracker with a mocked report client."""
    client = mock.Mock()
    # Nova 34 reads a part of the tree. Older versions read the whole tree.
    for read in (client.get_provider_subtree_and_ensure_root,
                 client.get_provider_tree_and_ensure_root):
        read.return_value = provider_tree.ProviderTree()
    monkeypatch.setattr(
        resource_tracker.ResourceTracker, '_get_traits', mock.Mock())
    monkeypatch.setattr(
        provider_tree.ProviderTree, 'update_traits', mock.Mock())
    tracker = resource_tracker.ResourceTracker(
        'host', mock.Mock(), reportclient=client)
    tracker.needed = []
    client.get_allocations_for_provider_tree.side_effect = (
        lambda *_args: tracker.needed.append(patches._needs_allocations.get()))
    return tracker


def report(tracker, startup):
    patches.update_to_placement.wrapper(
        patches.update_to_placement.original, tracker, mock.Mock(), NODE,
        startup)


@pytest.mark.parametrize('startup, pci, needed', [
    (False, False, False), (True, False, True), (False, True, True)])
def test_allocations_are_read_at_start_and_for_pci_devices(
        tracker, options, startup, pci, needed):
    options(report_in_placement=pci, group='pci')
    with mock.patch.object(pci_placement_translator,
                           'update_provider_tree_for_pci', return_value=False):
        report(tracker, startup)
    assert tracker.needed == [needed]
    assert patches._needs_allocations.get()


@pytest.mark.parametrize('startup', [False, True])
def test_nova_reshapes_providers_at_start_only(tracker, startup):
    tracker.driver.update_provider_tree.side_effect = [
        exception.ReshapeNeeded(), None]
    if startup:
        report(tracker, startup)
        assert tracker.reportclient.update_from_provider_tree.called
    else:
        with pytest.raises(exception.ReshapeNeeded):
            report(tracker, startup)


def test_unreported_pci_devices_need_no_allocations(options):
    options(report_in_placement=False, group='pci')
    assert not pci_placement_translator.update_provider_tree_for_pci(
        provider_tree.ProviderTree(), 'node', None, None, [])


@pytest.mark.parametrize('needed', [False, True])
def test_unneeded_allocations_are_not_read(needed):
    read = mock.Mock(return_value={'consumer': {}})
    token = patches._needs_allocations.set(needed)
    try:
        found = patches.allocations_for_provider_tree.wrapper(
            read, mock.sentinel.client, mock.sentinel.context, 'node')
    finally:
        patches._needs_allocations.reset(token)
    assert (found, read.called) == (read() if needed else {}, needed)
