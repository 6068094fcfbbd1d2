# SPDX-License-Identifier: Apache-2.0
"""Devices on the NUMA cells of the guest."""

import collections
import pathlib

import fixtures
from lxml import etree
from nova import objects
import nova.conf
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.virt.libvirt import config

from tests.functional import cloud
from tests.functional import test_affinity
from tests.unit import build

CONF = nova.conf.CONF


class TopologyCase(cloud.Cloud):
    """A host with eight GPUs, four on each of its two NUMA nodes."""

    DEVICE_SPEC = (cloud.GPU_SPEC,)

    def setUp(self):
        super().setUp()
        self.flags(hw_machine_type=['x86_64=q35'], group='libvirt')
        self.flags(num_pcie_ports=3, group='libvirt')
        self.start('compute1')

    def start(self, hostname):
        self.start_compute(hostname, host_info=self.host_info())

    def host_info(self):
        return fakelibvirt.HostInfo(
            cpu_nodes=2, cpu_sockets=1, cpu_cores=4, cpu_threads=1)

    def flavor_of(self, count, cells, **more):
        name = f'gpus-{count}'
        self.gpu_profile(name, count=count, numa='preferred')
        return self.flavor(name, extra_spec={'hw:numa_nodes': str(cells)},
                           vcpu=2, **more)

    def boot_on_both(self, cells=2):
        """Boot a server with one device of each host NUMA node."""
        self.gpu_profile('three', count=3, numa='required')
        three = self.flavor('three')
        for _time in range(2):
            self.boot(three)
        return self.boot(self.flavor_of(2, cells))

    def definition(self, server, host='compute1'):
        return etree.fromstring(self.domain(server, host).defined_xml)

    def nodes(self, server, host='compute1'):
        """Return the host node of each hostdev, and of its guest cell."""
        xml = self.definition(server, host)
        return {
            bus: (test_affinity.NODES[bus], cell and int(xml.find(
                f'numatune/memnode[@cellid="{cell}"]').get('nodeset')))
            for bus, cell in self.cells(xml).items()}

    def cells(self, xml):
        """Return the guest cell of each hostdev, by PCI bus or mdev UUID."""
        controllers = {
            int(element.get('index')): element for element in xml.iterfind(
                'devices/controller[@type="pci"][@index]')}
        found = {}
        for element in xml.iterfind('devices/hostdev'):
            source = element.find('source/address')
            bus = source.get('uuid') or source.get('bus')[2:]
            found[bus] = None
            address = element.find('address')
            if address is not None:
                port = controllers[int(address.get('bus'), 16)]
                self.assertEqual('pcie-root-port', port.get('model'))
                root = controllers[int(
                    port.find('address').get('bus'), 16)]
                self.assertEqual('pcie-expander-bus', root.get('model'))
                found[bus] = root.findtext('target/node')
        return found

    def assert_on_its_cells(self, server, count, host='compute1'):
        nodes = self.nodes(server, host)
        self.assertEqual(count, len(nodes))
        for own, cells in nodes.values():
            self.assertEqual(own, cells)

    def places(self, server):
        """Return the guest address of each attached hostdev, by PCI bus."""
        return {
            element.find('source/address').get('bus'):
            dict(element.find('address').attrib)
            for element in self.domain(server).plugged}


class GuestTopologyTest(TopologyCase):

    def test_devices_on_both_nodes(self):
        server = self.boot_on_both()
        self.assert_on_its_cells(server, 2)
        self.assertEqual({'0', '1'},
                         set(self.cells(self.definition(server)).values()))

    def test_device_on_a_node_without_a_guest_cell(self):
        server = self.boot_on_both(cells=1)
        [own] = {cell for _own, cell in self.nodes(server).values()
                 if cell is not None}
        self.assertEqual({(own, own), (1 - own, None)},
                         set(self.nodes(server).values()))

    def test_suspend_and_resume(self):
        server = self.boot_on_both()
        places = self.places(server)
        self._suspend_server(server)
        self.assertEqual({}, self.places(server))
        self._resume_server(server)
        self.assertEqual(places, self.places(server))
        self.assertEqual(2, len(places))

    def test_resume_when_the_guest_address_is_in_use(self):
        server = self.boot_on_both()
        devices = set(self.places(server))
        self._suspend_server(server)
        attach = fakelibvirt.Domain.attachDeviceFlags

        def taken(domain, xml, flags=0):
            if etree.fromstring(xml).find('address') is not None:
                raise fakelibvirt.make_libvirtError(
                    fakelibvirt.libvirtError, 'address is in use',
                    error_code=fakelibvirt.VIR_ERR_XML_ERROR)
            attach(domain, xml, flags)

        self.useFixture(fixtures.MonkeyPatch(
            'nova.tests.fixtures.libvirt.Domain.attachDeviceFlags', taken))
        self._resume_server(server)
        self.assertEqual(devices, {
            element.find('source/address').get('bus')
            for element in self.domain(server).plugged})

    def test_hard_reboot_with_guest_numa_affinity_off_and_on(self):
        server = self.boot_on_both()
        for on in (False, True):
            self.flags(guest_numa_affinity=on, group='nova_accel')
            self._reboot_server(server, hard=True)
            if on:
                self.assert_on_its_cells(server, 2)
            else:
                self.assertEqual({None}, set(
                    self.cells(self.definition(server)).values()))
                self.assertEqual(2, len(self.nodes(server)))

    def test_resize_to_other_cells(self):
        server = self.boot(self.flavor_of(1, 1))
        self.assert_on_its_cells(server, 1)
        self.start('compute2')
        self._resize_server(server, self.flavor_of(1, 2))
        self._confirm_resize(server)
        host = self.api.get_server(server['id'])['OS-EXT-SRV-ATTR:host']
        self.assert_on_its_cells(server, 1, host)
        self.assertEqual(2, len(self.definition(server, host).findall(
            'numatune/memnode')))

    def test_rescue_and_unrescue(self):
        server = self.boot(self.flavor_of(1, 2))
        places = self.places(server)
        # nova-compute stores the domain XML in this directory, which the
        # harness does not create.
        pathlib.Path(CONF.instances_path, server['id']).mkdir()
        self._rescue_server(server)
        self.assert_on_its_cells(server, 1)
        self._unrescue_server(server)
        self.assertEqual(places, self.places(server))
        # The fake libvirt's XML has no guest cells, so the host nodes cannot
        # be compared here.
        self.assertNotIn(None, self.cells(self.definition(server)).values())

    def test_guest_without_numa_cells(self):
        self.gpu_profile('gpu')
        server = self.boot(self.flavor('gpu'))
        self.assertEqual({None}, set(
            self.cells(self.definition(server)).values()))

    def test_switches(self):
        """The recorded GPUs are in pairs behind switches."""
        self.gpu_profile('four', 4, 'off', guest_switches=True, affinity=[
            {'same': 'pcie_root'}])
        for more in {'hw:numa_nodes': '2'}, {}:
            server = self.boot(self.flavor('four', vcpu=2, extra_spec=more))
            models = collections.Counter(
                element.get('model') for element in self.definition(
                    server).iterfind('devices/controller[@index]'))
            self.assertEqual((2, 4), (
                models['pcie-switch-upstream-port'],
                models['pcie-switch-downstream-port']))
            self._reboot_server(server, hard=True)
            self.assertEqual(4, len(self.places(server)))
            self._delete_server(server)

    def test_other_machine_type_has_no_expander_bus(self):
        self.flags(hw_machine_type=['x86_64=pc'], group='libvirt')
        server = self.boot(self.flavor_of(1, 1))
        xml = self.definition(server)
        self.assertEqual({None}, set(self.cells(xml).values()))
        self.assertEqual([], xml.findall(
            'devices/controller[@model="pcie-expander-bus"]'))

    def test_mdev(self):
        """An mdev is on its cell, though it is created after the planning."""
        self.directory_host(cloud.A100)
        self.flags(device_spec=[cloud.VGPU_SPEC], group='nova_accel')
        self.start('compute2')
        self.write_profile('vgpu', groups=[{'resources': {cloud.VGPU: 1}}])
        server = self.boot(self.flavor('vgpu', vcpu=2, extra_spec={
            'hw:numa_nodes': '2'}), host='compute2')
        xml = self.definition(server, 'compute2')
        [(uuid, cell)] = self.cells(xml).items()
        self.assertEqual(uuid, xml.find(
            'devices/hostdev[@type="mdev"]/source/address').get('uuid'))
        # In the recording the card is on node 0.
        self.assertEqual('0', xml.find(
            f'numatune/memnode[@cellid="{cell}"]').get('nodeset'))


class CpulessNodesTest(TopologyCase):
    """GPUs on NUMA nodes that have no CPUs: two nodes for four GPUs."""

    DEVICE_SPEC = (cloud.FOUR_SPEC,)
    #: The NUMA node that sysfs reports for the GPU on each bus.
    REPORTED = {'43': 10, '44': 10, '83': 2, '84': 2}
    #: The nearest node with CPUs of each node.
    NEAREST = {0: 0, 1: 1, 2: 1, 10: 0}

    def start(self, hostname):
        self.machine = self.directory_host()
        for bus, node in self.REPORTED.items():
            (self.machine / f'sys/bus/pci/devices/0000:{bus}:00.0/numa_node'
             ).write_text(f'{node}\n')
        self.write_nodes()
        super().start(hostname)

    def write_nodes(self):
        for path, text in build.numa_nodes({node: (
                '' if node > 1 else f'{4 * node}-{4 * node + 3}',
                ' '.join('10' if node == other else '80' if near == nearest
                         else '120' for other, near in self.NEAREST.items()))
                for node, nearest in self.NEAREST.items()}).items():
            (self.machine / path).parent.mkdir(exist_ok=True)
            (self.machine / path).write_text(text)

    def host_info(self):
        """Return what libvirt reports: it lists the nodes without CPUs."""
        info = super().host_info()
        for node in [*self.NEAREST][2:]:
            cell = config.LibvirtConfigCapsNUMACell()
            cell.id, cell.memory = node, 1 << 24
            cell.mempages = fakelibvirt.create_mempages([(4, 1 << 22)])
            info.numa_topology.cells.append(cell)
        return info

    def traits(self):
        """Return the numbers in the traits of NUMA nodes, by bus."""
        prefix = 'CUSTOM_NOVA_ACCEL_NUMA_NODE_'
        return {name[-7:-5]: [
            int(trait.removeprefix(prefix)) for trait
            in self._get_provider_traits(provider['uuid'])
            if trait.startswith(prefix)]
            for name, provider in self.providers().items()}

    def test_required_device_is_near_its_guest(self):
        self.gpu_profile('one', numa='required')
        flavor = self.flavor('one', extra_spec={'hw:numa_nodes': '1'})
        for _gpu in self.REPORTED:
            self.assert_on_its_cells(self.boot(flavor), 1)

    def test_preferred_devices_are_near_their_guest(self):
        flavor = self.flavor_of(2, cells=1)
        for _pair in range(len(self.REPORTED) // 2):
            self.assert_on_its_cells(self.boot(flavor), 2)

    def test_devices_on_distinct_nodes_are_on_both_cells(self):
        self.gpu_profile('two', 2, 'off', affinity=[{'distinct': 'numa_node'}])
        server = self.boot(self.flavor('two', vcpu=2, extra_spec={
            'hw:numa_nodes': '2'}))
        self.assert_on_its_cells(server, 2)
        xml = self.definition(server)
        self.assertEqual({'2', '3'}, set(self.cells(xml).values()))
        self.assertEqual(['0', '1', None, None], [
            cell.get('cpus') for cell in xml.iterfind('cpu/numa/cell')])

    def test_device_is_near_a_port_on_a_node_without_cpus(self):
        get, ports = (objects.Instance.get_pci_devices,
                      objects.InstancePCIRequest.NEUTRON_PORT)
        self.write_profile('near', groups=[
            {'name': 'gpu', 'resources': {cloud.GPU: 1}, 'numa': 'off'}],
            affinity=[{'same': 'numa_node', 'groups': ['gpu', 'network']}])
        flavor = self.flavor('near')
        for port in (2, 10):
            with fixtures.MonkeyPatch(
                    'nova.objects.Instance.get_pci_devices',
                    lambda instance, source=None, request_id=None, port=port: (
                        [objects.PciDevice(numa_node=port)]
                        if source == ports else get(instance, source,
                                                    request_id))):
                server = self.boot(flavor, az='nova:compute1')
            self.assertEqual([self.NEAREST[port]], [
                own for own, _cell in self.nodes(server).values()])

    def test_server_keeps_its_devices_when_their_node_is_read_anew(self):
        """So it is when a version that knows such nodes is installed."""
        for path in self.machine.glob('sys/devices/system/node/*/cpulist'):
            path.unlink()
        self._run_periodics()
        self.assertEqual({bus: [node] for bus, node in self.REPORTED.items()},
                         self.traits())
        server = self.boot(self.flavor_of(2, cells=1))
        held, allocated = self.hostdevs(server), self.allocated(server)
        self.assertEqual({None}, set(
            self.cells(self.definition(server)).values()))
        self.write_nodes()
        self._run_periodics()
        self.assertEqual(
            {bus: [self.NEAREST[node]] for bus, node in self.REPORTED.items()},
            self.traits())
        self.assertEqual([], self.disagreements())
        self._reboot_server(server, hard=True)
        self.assertEqual((held, allocated),
                         (self.hostdevs(server), self.allocated(server)))
        self.assertNotIn(None, self.cells(self.definition(server)).values())


class EightCpulessNodesTest(CpulessNodesTest):
    """Each of eight GPUs is on the first of eight nodes without CPUs."""

    DEVICE_SPEC = (cloud.GPU_SPEC,)
    REPORTED = {bus: 2 + 8 * number for number, bus
                in enumerate(reversed(test_affinity.NODES))}
    NEAREST = {0: 0, 1: 1} | {
        first + number: test_affinity.NODES[bus]
        for bus, first in REPORTED.items() for number in range(8)}

    def test_devices_on_one_node_and_on_both(self):
        self.assert_on_its_cells(self.boot_on_both(), 2)
