# SPDX-License-Identifier: Apache-2.0
"""The internal API of the installed Nova that the code relies on."""

import ast
import inspect
import pathlib
import textwrap
from unittest import mock

import nova
from nova import exception
from nova import objects
from nova.api.openstack.compute import servers
from nova.api.validation.extra_specs import base as extra_specs
from nova.api.validation.extra_specs import validators
from nova.compute import manager as compute_manager
from nova.compute import provider_tree
from nova.compute import resource_tracker
from nova.compute import utils as compute_utils
from nova.db.main import api as db
from nova.pci import manager as pci_manager
from nova.scheduler import filters
from nova.scheduler import host_manager
from nova.scheduler import manager as scheduler_manager
from nova.scheduler import utils
from nova.scheduler.client import report
from nova.virt import driver as virt_driver
from nova.virt import hardware
from nova.virt.libvirt import config
from nova.virt.libvirt import driver as libvirt_driver
from nova.virt.libvirt import host as libvirt_host
from oslo_utils import importutils
import pytest

from nova_accel.api import expansion
from nova_accel.compute import driver
from nova_accel.compute import patches
from nova_accel.scheduler import filter as filter_


def parameters(function):
    return [name for name in inspect.signature(function).parameters
            if name != 'self']


def calls(function_name):
    """Yield the module and the call for each call of a name in Nova's code."""
    root = pathlib.Path(nova.__file__).parent
    for path in sorted(root.rglob('*.py')):
        if 'tests' in path.parts:
            continue
        text = path.read_text()
        if function_name not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and function_name == getattr(
                    node.func, 'attr', getattr(node.func, 'id', None)):
                yield str(path.relative_to(root)), node


# nova-compute

#: Overridden methods, and the parameters that the overrides name.
OVERRIDDEN = {
    '__init__': ['virtapi'],
    'init_host': [],
    'get_available_resource': [],
    'update_provider_tree': ['provider_tree', 'nodename'],
    'spawn': ['context', 'instance', 'image_meta', 'injected_files',
              'admin_password', 'allocations'],
    'finish_migration': ['context', 'migration', 'instance', 'disk_info',
                         'network_info', 'image_meta', 'resize_instance',
                         'allocations'],
    'confirm_migration': ['context', 'migration', 'instance'],
    'finish_revert_migration': ['context', 'instance', 'network_info',
                                'migration'],
    '_hard_reboot': ['context', 'instance'],
    'destroy': ['context', 'instance'],
    'cleanup': ['context', 'instance'],
    '_get_guest_config': ['instance'],
    '_create_guest': ['context', 'xml', 'instance', 'power_on', 'pause',
                      'post_xml_callback'],
    '_allocate_mdevs': ['allocations'],
    'suspend': ['context', 'instance'],
    'resume': ['context', 'instance'],
    '_swap_volume': ['guest'],
    '_get_mdevs_from_guest_config': ['xml'],
    'unrescue': ['context', 'instance'],
    '_build_device_metadata': ['context', 'instance'],
    '_resume_guest_after_snapshot': ['context', 'live_snapshot',
                                     'original_power_state', 'instance'],
    'check_can_live_migrate_source': ['context', 'instance'],
    'check_source_migrate_data_at_dest': [
        'ctxt', 'instance', 'migrate_data', 'migration', 'limits', 'allocs'],
    'pre_live_migration': ['context', 'instance', 'block_device_info',
                           'network_info', 'disk_info', 'migrate_data'],
    '_live_migration_operation': ['context', 'instance', 'dest',
                                  'block_migration', 'migrate_data', 'guest'],
    '_live_migration_monitor': ['context', 'instance', 'guest', 'dest',
                                'post_method', 'recover_method',
                                'block_migration', 'migrate_data'],
    '_is_post_copy_enabled': [],
    'post_live_migration_at_destination': ['context', 'instance'],
    'rollback_live_migration_at_destination': ['context', 'instance'],
}
OUR_OWN = {'nodes_for', '_new_state', '_node', '_rebuild_metadata',
           'refresh_providers'}
OUR_ATTRIBUTES = {'_announcer', '_claims', '_device_migration',
                  '_guest_config', '_guest_roles', '_guest_start',
                  '_operations', '_periodic', '_read_node', '_state',
                  '_suspension'}


@pytest.mark.parametrize('name', OVERRIDDEN)
def test_overridden_method_begins_with_the_same_parameters(name):
    wanted = OVERRIDDEN[name]
    theirs = parameters(getattr(libvirt_driver.LibvirtDriver, name))
    assert theirs[:len(wanted)] == wanted
    ours = parameters(vars(driver.LibvirtDriver)[name])
    assert ours == [*wanted, 'args', 'kwargs']


def test_nothing_else_is_overridden():
    methods = {name for name, value in vars(driver.LibvirtDriver).items()
               if inspect.isfunction(value)}
    assert methods == set(OVERRIDDEN) | OUR_OWN


def test_own_methods_override_no_method_of_nova():
    assert not [name for name in OUR_OWN | OUR_ATTRIBUTES
                if hasattr(libvirt_driver.LibvirtDriver, name)]


def test_nova_tells_whether_a_snapshot_suspends_the_guest():
    assert parameters(libvirt_driver.LibvirtDriver.
                      _needs_suspend_resume_for_snapshot) == [
        'live_snapshot', 'current_power_state']


def test_driver_is_looked_for_below_nova_virt():
    assert "'nova.virt.%s'" in inspect.getsource(
        virt_driver.load_compute_driver)


def test_driver_is_importable_from_nova_virt():
    loaded = importutils.import_class('nova.virt.accel.LibvirtDriver')
    assert loaded is driver.LibvirtDriver
    assert issubclass(loaded, libvirt_driver.LibvirtDriver)


def test_first_name_of_the_host_is_kept():
    """So the driver asks libvirt only once."""
    host = mock.Mock(_hostname=None)
    host.get_connection().getHostname.side_effect = ['one', 'two']
    assert [libvirt_host.Host.get_hostname(host)
            for _time in range(2)] == ['one', 'one']


def test_all_guest_xml_goes_through_one_method():
    found = list(calls('_get_guest_config'))
    assert [module for module, _call in found] == ['virt/libvirt/driver.py']
    assert [ast.unparse(argument) for argument in found[0][1].args][0] == (
        'instance')


def test_guest_devices_are_released_in_cleanup():
    destroy = inspect.getsource(libvirt_driver.LibvirtDriver.destroy)
    assert (destroy.index('self._destroy(instance)')
            < destroy.index('self.cleanup('))
    assert 'self.driver.cleanup(' in inspect.getsource(
        inspect.unwrap(compute_manager.ComputeManager._post_live_migration))


def test_callback_is_called_between_definition_and_start():
    """One-time-use devices are reserved there."""
    source = inspect.getsource(libvirt_driver.LibvirtDriver._create_guest)
    assert (source.index('libvirt_guest.Guest.create(')
            < source.index('post_xml_callback()')
            < source.index('guest.launch('))


def test_nova_deletes_the_allocations_of_a_failed_rebuild():
    """Nova calls the wrapped method even if the server stays on its host."""
    method = resource_tracker.ResourceTracker.__dict__[
        'delete_allocation_for_evacuated_instance']
    assert parameters(getattr(method, 'nova_accel', method))[:3] == [
        'context', 'instance', 'node']
    assert 'self.rt.delete_allocation_for_evacuated_instance(' in (
        inspect.getsource(compute_manager))


def test_hard_reboot_is_called_with_positional_arguments():
    found = [ast.unparse(call.args[1]) for _module, call
             in calls('_hard_reboot')]
    assert found and set(found) == {'instance'}


def test_init_host_calls_the_wrapped_method_for_each_server():
    method = compute_manager.ComputeManager._init_instance
    assert parameters(getattr(method, 'nova_accel', method)) == [
        'context', 'instance']
    [(module, call)] = calls('_init_instance')
    assert (module, ast.unparse(call)) == (
        'compute/manager.py', 'self._init_instance(context, instance)')
    # Nova calls it sequentially, with the object that gets the outcome.
    [loop] = [node for node in ast.walk(ast.parse(textwrap.dedent(
        inspect.getsource(compute_manager.ComputeManager.init_host))))
        if isinstance(node, ast.For) and '_init_instance' in ast.unparse(node)]
    assert ast.unparse(loop.target) == 'instance'


def test_failed_reboot_sets_the_server_to_error():
    source = inspect.getsource(
        compute_manager.ComputeManager._reboot_instance)
    _before, asked, failed = source.partition('self.driver.reboot(')
    assert asked and '_set_instance_obj_error_state(instance)' in failed
    assert 'self.reboot_instance(context, instance' in inspect.getsource(
        inspect.unwrap(compute_manager.ComputeManager._init_instance))


@pytest.mark.parametrize(('method', 'wanted'), [
    (libvirt_driver.LibvirtDriver._destroy, ['instance']),
    (libvirt_host.Host.get_node_uuid, []),
    (libvirt_host.Host.get_hostname, []),
    (libvirt_host.Host.list_instance_domains, ['only_running']),
    (libvirt_host.Host.write_instance_config, ['xml']),
    (pci_manager.PciDevTracker.free_device, ['dev', 'instance']),
    (pci_manager.PciDevTracker.save, ['context']),
    (report.SchedulerReportClient.get, ['url', 'version',
                                        'global_request_id']),
    (report.SchedulerReportClient.put, ['url', 'data', 'version',
                                        'global_request_id']),
    (report.SchedulerReportClient.post, ['url', 'data', 'version',
                                         'global_request_id']),
    (report.SchedulerReportClient.clear_provider_cache, ['init']),
    (report.SchedulerReportClient.get_allocs_for_consumer,
     ['context', 'consumer']),
    (report.SchedulerReportClient.get_allocations_for_resource_provider,
     ['context', 'rp_uuid']),
    (report.SchedulerReportClient.delete_allocation_for_instance,
     ['context', 'uuid', 'consumer_type', 'force']),
    (report.SchedulerReportClient.move_allocations,
     ['context', 'source_consumer_uuid', 'target_consumer_uuid']),
    (report.SchedulerReportClient.put_allocations,
     ['context', 'consumer_uuid', 'payload']),
    (compute_utils.is_volume_backed_instance,
     ['context', 'instance', 'bdms']),
    (provider_tree.ProviderTree.exists, ['name_or_uuid']),
    (provider_tree.ProviderTree.data, ['name_or_uuid']),
    (provider_tree.ProviderTree.remove, ['name_or_uuid']),
    (provider_tree.ProviderTree.get_provider_uuids, ['name_or_uuid']),
    (provider_tree.ProviderTree.new_child,
     ['name', 'parent', 'uuid', 'generation']),
    (provider_tree.ProviderTree.update_inventory,
     ['name_or_uuid', 'inventory', 'generation']),
    (provider_tree.ProviderTree.update_traits,
     ['name_or_uuid', 'traits', 'generation']),
], ids=lambda value: getattr(value, '__qualname__', None))
def test_called_methods_take_the_same_parameters(method, wanted):
    assert parameters(method) == wanted


def test_provider_data_has_the_attributes_we_read():
    tree = provider_tree.ProviderTree()
    uuid = tree.new_root('root', '7d6a5fa9-5f0c-4f55-9f0f-d2a0a15e2b7d')
    data = tree.data(tree.new_child('child', uuid))
    assert (data.name, data.parent_uuid, data.inventory, set(data.traits)
            ) == ('child', uuid, {}, set())


def test_hostdev_element_still_leaves_its_alias_out():
    # If Nova writes the alias, remove it from compute/guest/hostdev_xml.py.
    element = config.LibvirtConfigGuestHostdevPCI()
    element.domain = element.bus = element.slot = element.function = '0'
    element.alias = 'ua-x'
    assert element.format_dom().find('alias') is None


def test_nova_writes_address_bits_of_a_flavor():
    source = inspect.getsource(
        libvirt_driver.LibvirtDriver._get_guest_cpu_config_maxphysaddr)
    assert 'LibvirtConfigGuestCPUMaxPhysAddr()' in source
    width = config.LibvirtConfigGuestCPUMaxPhysAddr()
    width.mode, width.bits = 'emulate', 44
    guest = config.LibvirtConfigGuest()
    guest.cpu = config.LibvirtConfigGuestCPU()
    guest.cpu.maxphysaddr = width
    assert '  <maxphysaddr mode="emulate" bits="44"/>' in guest.cpu.to_xml()
    for name in ('os_mach_type', 'os_firmware', 'os_loader',
                 'os_loader_type', 'os_loader_secure'):
        assert getattr(guest, name) is None


def test_flavor_with_address_bits_needs_an_older_microversion():
    # If Nova adds validators for these extra specs, update
    # doc/source/admin/large-bars.rst and compute/guest/address_bits.py.
    assert not [name for name in validators.VALIDATORS
                if name.startswith('hw:maxphysaddr')]


def test_address_bits_need_the_libvirt_version_nova_requires():
    assert libvirt_driver.MIN_LIBVIRT_MAXPHYSADDR == (8, 7, 0)
    assert parameters(libvirt_host.Host.has_min_version) == [
        'lv_ver', 'hv_ver', 'hv_type']
    cpu = config.LibvirtConfigCPU()
    cpu.parse_str('<cpu><maxphysaddr mode="emulate" bits="46"/></cpu>')
    assert cpu.maxphysaddr.bits == 46
    assert config.LibvirtConfigCPU().maxphysaddr is None


def test_refused_devices_make_nova_reschedule():
    source = inspect.getsource(
        compute_manager.ComputeManager._build_and_run_instance)
    assert 'exception.ComputeResourcesUnavailable' in source
    assert 'exception.RescheduledException' in source
    assert str(exception.ComputeResourcesUnavailable(reason='why')
               ).endswith(': why.')


# nova-api

def test_flavor_is_loaded_in_these_places_only():
    found = {(module, tuple(ast.unparse(keyword.value)
                            for keyword in call.keywords
                            if keyword.arg == 'read_deleted'))
             for module, call in calls('get_flavor_by_flavor_id')}
    assert found == {
        ('api/openstack/compute/servers.py', ("'no'",)),
        ('compute/api.py', ("'no'",)),
        ('api/openstack/compute/flavors.py', ())}


def test_flavor_loader_is_wrapped_by_loading_the_validators():
    assert expansion.get_flavor_by_flavor_id.is_installed


def test_rejection_becomes_a_400():
    assert exception.InvalidRequest in servers.INVALID_FLAVOR_IMAGE_EXCEPTIONS
    for action in (servers.ServersController.create,
                   servers.ServersController._resize):
        assert 'INVALID_FLAVOR_IMAGE_EXCEPTIONS' in inspect.getsource(
            inspect.unwrap(action))


def test_validators_are_registered():
    assert 'nova_accel:profile' in validators.VALIDATORS
    assert 'nova_accel:numa_{group}' in validators.VALIDATORS
    assert {'name', 'description', 'value', 'parameters'} <= set(
        parameters(extra_specs.ExtraSpecValidator))


# nova-scheduler

def test_filter_implements_novas_interface():
    assert parameters(filters.BaseHostFilter.host_passes)[0] == 'host_state'
    assert filters.BaseHostFilter.RUN_ON_REBUILD is False
    assert issubclass(filter_.AcceleratorFilter, filters.BaseHostFilter)


def test_nova_claims_the_first_candidate():
    assert 'host.allocation_candidates[0]' in inspect.getsource(
        scheduler_manager.SchedulerManager._schedule)


def test_claims_go_through_the_function_that_is_wrapped():
    wrapped = getattr(utils.claim_resources, 'nova_accel',
                      utils.claim_resources)
    assert list(inspect.signature(wrapped).parameters)[:5] == [
        'ctx', 'client', 'spec_obj', 'instance_uuid', 'alloc_req']
    assert 'utils.claim_resources(' in inspect.getsource(
        scheduler_manager.SchedulerManager._schedule)


def test_candidates_come_from_the_method_that_is_wrapped():
    method = report.SchedulerReportClient.get_allocation_candidates
    method = getattr(method, 'nova_accel', method)
    assert parameters(method) == ['context', 'resources']
    assert "data['allocation_requests'], data['provider_summaries']" in (
        inspect.getsource(method))
    assert 'placement_client.get_allocation_candidates(' in (
        inspect.getsource(scheduler_manager))
    # Nova copies the candidates for each host. See Candidate.__deepcopy__.
    assert 'copy.deepcopy(' in inspect.getsource(
        scheduler_manager.SchedulerManager._schedule)


def test_request_can_be_limited_to_one_host():
    objects.register_all()
    request = utils.ResourceRequest()
    request.get_request_group(None).in_tree = 'a-uuid'
    request.get_request_group(None).add_resource('VCPU', 1)
    assert 'in_tree=a-uuid' in request.to_querystring()


def test_host_state_has_the_attributes_the_filter_reads():
    state = host_manager.HostState('host', 'node', None)
    for name in ('allocation_candidates', 'numa_topology', 'pci_stats',
                 'cpu_allocation_ratio', 'ram_allocation_ratio'):
        assert hasattr(state, name), name
    assert 'self.stats = compute.stats' in inspect.getsource(
        host_manager.HostState)


def test_unconfirmed_resize_is_in_progress():
    assert parameters(
        objects.MigrationList.get_in_progress_by_host_and_node) == [
        'context', 'host', 'node']
    over = {node.value for node in ast.walk(ast.parse(inspect.getsource(
        db.migration_get_in_progress_by_host_and_node)))
        if isinstance(node, ast.Constant)}
    assert 'confirmed' in over and 'reverted' in over
    assert 'finished' not in over


def test_resize_is_reverted_before_the_claim_is_dropped():
    dropped = inspect.getsource(
        resource_tracker.ResourceTracker.drop_move_claim_at_dest)
    assert (dropped.index("migration.status = 'reverted'")
            < dropped.index('self._drop_move_claim('))


def test_fit_function_has_the_parameters_we_wrap():
    assert parameters(hardware.numa_fit_instance_to_host) == [
        'host_topology', 'instance_topology', 'provider_mapping', 'limits',
        'pci_requests', 'pci_stats']


def test_all_callers_use_the_wrapped_fit_function():
    """All callers use the attribute of ``hardware``, which is replaced."""
    callers = {module: ast.unparse(call.func) for module, call
               in calls('numa_fit_instance_to_host')}
    assert {str(module).rpartition('nova/')[2] for module in callers} == {
        'compute/claims.py', 'scheduler/host_manager.py',
        'scheduler/filters/numa_topology_filter.py'}
    assert set(callers.values()) == {'hardware.numa_fit_instance_to_host'}


@pytest.mark.parametrize('seam', patches.CLAIMS, ids=str)
def test_claims_have_allocations_as_a_parameter(seam):
    names = parameters(seam.original)
    [argument] = seam.wrapper.args
    assert 'instance' in names and argument in names
    assert ('flavor' in names) is (seam.name == 'resize_claim')


def test_host_state_fits_guests_with_the_wrapped_function():
    assert 'numa_fit_instance_to_host' in inspect.getsource(
        host_manager.HostState)
