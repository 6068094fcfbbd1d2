# SPDX-License-Identifier: Apache-2.0
"""Threads that allocate the memory of guests, and devices with iommufd."""

import fixtures
from lxml import etree
from nova.tests.fixtures import libvirt as fakelibvirt

from nova_accel.host import vfio
from tests.functional import cloud


class LargeGuests(cloud.Cloud):

    #: Versions of libvirt and QEMU.
    LIBVIRT, QEMU = 12_001_000, 9_000_000

    def setUp(self):
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())
        self.set_up_host()
        self.gpu_profile('one')
        self.start_compute('compute1', libvirt_version=self.LIBVIRT,
                           qemu_version=self.QEMU, host_info=self.host_info())

    def set_up_host(self):
        pass

    def host_info(self):
        return None

    def definition(self, server):
        return etree.fromstring(self.domain(server).defined_xml)

    def allocation(self, server):
        """Return the attributes of a guest's <allocation>, None if absent."""
        found = self.definition(server).find('memoryBacking/allocation')
        return None if found is None else dict(found.attrib)


class FileBackedMemory(LargeGuests):

    def set_up_host(self):
        self.flags(file_backed_memory=8192, group='libvirt')
        self.flags(reserved_host_memory_mb=0, ram_allocation_ratio=1.0)


class MemoryThreadsTest(FileBackedMemory):

    def test_number_is_that_of_the_cpus_up_to_the_option(self):
        self.flags(memory_allocation_threads=3, group='nova_accel')
        small, large = (self.boot(self.flavor('one', vcpu=cpus))
                        for cpus in (2, 4))
        self.assertEqual({'mode': 'immediate', 'threads': '2'},
                         self.allocation(small))
        self.assertEqual({'mode': 'immediate', 'threads': '3'},
                         self.allocation(large))
        self.flags(memory_allocation_threads=0, group='nova_accel')
        self._reboot_server(large, hard=True)
        self.assertEqual({'mode': 'immediate'}, self.allocation(large))

    def test_guest_without_devices_is_unchanged(self):
        self.assertEqual({'mode': 'immediate'},
                         self.allocation(self.boot(self.flavor(vcpu=2))))


class OldLibvirtTest(FileBackedMemory):

    LIBVIRT = 8_001_000

    def test_qemu_chooses_the_number(self):
        server = self.boot(self.flavor('one', vcpu=2))
        self.assertEqual({'mode': 'immediate'}, self.allocation(server))
        self.assertIn('QEMU chooses the number of threads', self.log.output)


class HugePagesTest(LargeGuests):

    def host_info(self):
        info = fakelibvirt.HostInfo(cpu_nodes=2, cpu_sockets=1, cpu_cores=4,
                                    cpu_threads=1)
        for cell in info.numa_topology.cells:
            cell.mempages = fakelibvirt.create_mempages([
                (4, (info.kB_mem - 2048 * 1024) // 4), (2048, 1024)])
        return info

    def test_guest_with_huge_pages_has_threads(self):
        flavor = self.flavor('one', vcpu=2, extra_spec={
            'hw:mem_page_size': 'large'})
        server = self.boot(flavor)
        self.assertEqual({'threads': '2'}, self.allocation(server))
        self.assertEqual(1, len(self.definition(server).findall(
            'memoryBacking/hugepages/page')))

    def test_guest_with_small_pages_is_unchanged(self):
        self.assertIsNone(self.allocation(self.boot(
            self.flavor('one', vcpu=2))))


class Iommufd(LargeGuests):
    """A host that can use iommufd, and does."""

    #: Files of the host that show what its kernel has.
    FILES = {f'{vfio.IOMMUFD}/dev': '10:261\n',
             vfio.NUMBERS: 'Character devices:\n509 vfio-dev\n510 vfio\n'}

    def set_up_host(self):
        self.flags(iommufd=True, group='nova_accel')
        machine = self.directory_host()
        for path, text in self.FILES.items():
            (machine / path).parent.mkdir(parents=True, exist_ok=True)
            (machine / path).write_text(text)

    def uses_iommufd(self, server):
        """Return for each hostdev, defined and attached, if it uses it."""
        return [[element.find('driver[@iommufd="yes"]') is not None
                 for element in elements] for elements in (
                     self.definition(server).iterfind('devices/hostdev'),
                     self.domain(server).plugged)]

    def assert_starts_without(self, reason, profile='one', count=1):
        server = self.boot(self.flavor(profile))
        self.assertEqual([[False] * count] * 2, self.uses_iommufd(server))
        self.assertIn('QEMU opens the devices of this server without iommufd, '
                      f'since {reason}', self.log.output)


class IommufdTest(Iommufd):

    def test_suspend_and_resume_and_the_option_off(self):
        server = self.boot(self.flavor('one'))
        self.assertEqual([[True]] * 2, self.uses_iommufd(server))
        self._suspend_server(server)
        self.assertEqual([[True], []], self.uses_iommufd(server))
        self._resume_server(server)
        self.assertEqual([[True]] * 2, self.uses_iommufd(server))
        self.flags(iommufd=False, group='nova_accel')
        self._reboot_server(server, hard=True)
        self.assertEqual([[False]] * 2, self.uses_iommufd(server))
        self.assertNotIn('without iommufd', self.log.output)

    def test_gpus_with_cliques(self):
        self.flags(hw_machine_type=['x86_64=q35'], group='libvirt')
        self.gpu_profile('peers', count=2, gpu_cliques=True,
                         affinity=[{'same': 'pcie_switch'}])
        self.assert_starts_without('GPUs with cliques access', 'peers', 2)


class OldLibvirtIommufdTest(Iommufd):

    LIBVIRT = 12_000_000

    def test_guest_starts(self):
        self.assert_starts_without("this host's libvirt is older than 12.1.0")


class OldQemuIommufdTest(Iommufd):

    QEMU = 8_002_002

    def test_guest_starts(self):
        self.assert_starts_without("this host's libvirt is older than 12.1.0 "
                                   'or its QEMU than 9.0.0')


class KernelWithoutIommufdTest(Iommufd):

    FILES = {}

    def test_guest_starts(self):
        self.assert_starts_without('this host has no /dev/iommu')
