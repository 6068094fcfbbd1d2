# SPDX-License-Identifier: Apache-2.0
"""The number of reads of libvirt, Placement and sysfs."""

import fixtures

from nova_accel.core.placement import providers
from nova_accel.host import libvirt_xml
from nova_accel.host import reader
from tests.functional import cloud

DOMAIN = '''<domain type="qemu"><name>d{0}</name>
<uuid>7c1b3d52-6f0e-4a7e-9d55-{0:012x}</uuid><os><type>hvm</type></os>
<memory>1</memory><vcpu>1</vcpu><devices>{1}</devices></domain>'''
GPU = '''<hostdev mode="subsystem" type="pci" managed="yes"><source>
<address domain="0x0000" bus="0x43" slot="0x00" function="0x0"/></source>
</hostdev>'''


class ProvidersTest(cloud.Cloud):
    """A host with four devices, each with its own resource provider."""

    def assertReads(self, most, operation):
        with self.placement_requests() as requests:
            operation()
        reads = [url for method, url in requests if method == 'get']
        self.assertLessEqual(len(reads), most, reads)

    def test_unchanged_providers_are_not_read(self):
        self.write_marks()
        self.start_compute('compute1')
        self.assertReads(2, self._run_periodics)
        flavor = self.flavor()
        self.assertReads(
            2, lambda: self._delete_server(self.boot(flavor)))


class DomainsTest(cloud.Cloud):

    def setUp(self):
        super().setUp()
        self.start_compute('compute1')
        self.gpu_profile('gpu')

    def define(self, number, devices=''):
        self.connection().defineXML(
            DOMAIN.format(number, devices)).createWithFlags(0)

    def descriptions(self, operation):
        """Return how often an operation reads a domain's XML."""
        asked, describe = [], libvirt_xml.describe
        with fixtures.MockPatchObject(
                libvirt_xml, 'describe',
                lambda *args: asked.append(args) or describe(*args)):
            operation()
        return len(asked)

    def operations(self):
        """Return the number of reads of XML, by operation."""
        servers = []
        return {
            f'{verb} {name}': self.descriptions(operation)
            for name, flavor in (('plain', self.flavor()),
                                 ('with a GPU', self.flavor('gpu')))
            for verb, operation in (
                ('boot', lambda flavor=flavor: servers.append(
                    self.boot(flavor))),
                ('delete', lambda: self._delete_server(servers.pop())))
        } | {'round': self.descriptions(self._run_periodics)}

    def test_other_domains_are_read_once_a_round(self):
        self.define(0)
        self._run_periodics()
        alone = self.operations()
        for number in range(1, 6):
            self.define(number)
        self._run_periodics()
        crowded = self.operations()
        more = {name: crowded[name] - alone[name] for name in alone}
        # Each domain has an XML of its definition and one of its guest.
        self.assertEqual(
            {name: 2 * 5 if name == 'round' else 0 for name in more}, more)

    def test_new_domain_is_read_at_once(self):
        self.define(0, GPU)
        [address, *_others] = self.held()
        for _number in range(3):
            self.assertNotIn(address, self.hostdevs(self.boot(
                self.flavor('gpu'))))

    def test_only_disputed_providers_are_requested(self):
        plain = self.flavor()

        def requests():
            with self.placement_requests() as requests:
                self._delete_server(self.boot(plain))
            return len(requests)

        before = requests()
        self.define(0, GPU)
        self.useFixture(cloud.AuditClock()).skip_interval()
        self._run_periodics()
        self.assertEqual(1, [
            providers.DISPUTED in self._get_provider_traits(provider['uuid'])
            for provider in self.providers().values()].count(True))
        self._run_periodics()
        # One more request when the server is created, and one when it is
        # deleted.
        self.assertEqual(before + 2, requests())


class StartTest(cloud.Cloud):

    DEVICE_SPEC = (cloud.VGPU_SPEC,)

    def setUp(self):
        super().setUp()
        self.directory_host(cloud.A100)
        self.start_compute('compute1')
        self.write_profile('vgpu', groups=[{'resources': {cloud.VGPU: 1}}])

    def reads(self):
        """Restart nova-compute; return how often it reads sysfs."""
        read, init_host = reader.read, type(
            self.computes['compute1'].driver).init_host
        made, counting = [], []

        def counted(*args, **kwargs):
            made.extend(counting)
            return read(*args, **kwargs)

        def watched(*args, **kwargs):
            counting.append(1)
            try:
                return init_host(*args, **kwargs)
            finally:
                counting.clear()

        with fixtures.MockPatchObject(reader, 'read', counted), (
                fixtures.MockPatchObject(type(
                    self.computes['compute1'].driver), 'init_host', watched)):
            self.restart_compute_service('compute1')
        return len(made)

    def test_number_of_servers_does_not_change_reads_at_start(self):
        alone = self.reads()
        for _number in range(2):
            self.boot(self.flavor('vgpu'))
        self.assertEqual(alone, self.reads())
