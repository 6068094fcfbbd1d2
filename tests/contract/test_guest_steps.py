# SPDX-License-Identifier: Apache-2.0
"""What the steps of a guest's configuration add to the XML that Nova writes.

libvirt 9.0 takes the golden file of the cliques (``virsh define --validate``).
None was at hand that knows iommufd.
"""

import pathlib
import types

from lxml import etree
from nova import objects
import nova.conf
from nova.virt.libvirt import config as vconfig
import pytest

from nova_accel import conf
from nova_accel.compute.guest import gpu_cliques
from nova_accel.compute.guest import hostdev_xml
from nova_accel.compute.guest import iommufd
from nova_accel.compute.guest import memory_threads
from nova_accel.compute.guest import written_xml
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.core.request import flavor_specs
from nova_accel.host import libvirt_xml
from nova_accel.host import tree
from nova_accel.host import vfio
from tests.guest import numa
from tests.unit import build

objects.register_all()

CONF = nova.conf.CONF
GOLDEN = pathlib.Path(__file__).parents[1] / 'data' / 'golden'

PROVIDER = '4f6c08b3-2324-54ab-b04c-61c99d0c476c'
#: Two GPUs behind one switch, their NIC, a GPU behind another, and an mdev.
FUNCTIONS = tuple(
    build.function(at, ids, location=model.Location(1, 'pci0000:80',
                                                    switch=switch), **facts)
    for at, ids, switch, facts in (
        ('0000:83:00.0', '10de:2330', '0000:81:00.0', {}),
        ('0000:84:00.0', '10de:2330', '0000:81:00.0', {}),
        ('0000:85:00.0', '15b3:1021', '0000:81:00.0',
         {'class_code': build.NIC}),
        ('0000:c3:00.0', '10de:2330', '0000:c1:00.0', {})))
HELD = tuple(
    hostdev.Hostdev(address, naming.alias('ACCEL0', PROVIDER, index))
    for index, address in enumerate((
        *(function.address for function in FUNCTIONS),
        model.MdevAddress('83b8f4f2-509f-582f-8c1e-e6bfe0fa1001'))))
NOVA_HOST = types.SimpleNamespace(has_min_version=lambda **versions: True)
INSTANCE = objects.Instance(flavor=objects.Flavor(extra_specs={
    flavor_specs.CLIQUES_KEY: 'true'}))


@pytest.fixture(autouse=True)
def options(monkeypatch):
    CONF([], project='nova', default_config_files=[])
    conf.register_opts(CONF)
    monkeypatch.setattr(tree, 'open_tree', lambda path: tree.Recording({
        f'{vfio.IOMMUFD}/dev': '', vfio.NUMBERS: '509 vfio-dev\n'}))
    yield
    CONF.clear_override('iommufd', 'nova_accel')


@pytest.fixture
def guest():
    """A guest with hostdevs, four CPUs and huge pages."""
    made = numa.define((), 0)
    made.virt_type, made.os_type = 'kvm', 'hvm'
    made.name, made.uuid = 'guest', '5a1c7f0e-7c55-4d0c-9f3a-3f0f6d2f9a11'
    made.memory, made.vcpus = 1 << 20, 4
    page = vconfig.LibvirtConfigGuestMemoryBackingPage()
    page.size_kb, page.nodeset = 2048, [0]
    made.membacking = vconfig.LibvirtConfigGuestMemoryBacking()
    made.membacking.hugepages = [page]
    for device in HELD:
        made.add_device(hostdev_xml.hostdev_config(device))
    return made


def canonical(xml):
    return etree.tostring(xml, method='c14n2', strip_text=True).decode()


def is_golden(guest, name):
    return (canonical(etree.fromstring(guest.to_xml()))
            == canonical(etree.parse(str(GOLDEN / f'{name}.xml'))))


def test_guest_with_cliques_is_the_golden_file(guest):
    gpu_cliques.add(guest, HELD, model.Host(FUNCTIONS), NOVA_HOST, INSTANCE)
    assert is_golden(guest, 'gpu-cliques')
    _uuid, held = libvirt_xml.parse(guest.to_xml())
    assert [device.clique for device in held] == ['0', '0', '', '', '']


def test_guest_with_iommufd_and_threads_is_the_golden_file(guest):
    CONF.set_override('iommufd', True, 'nova_accel')
    iommufd.use(guest, NOVA_HOST, INSTANCE)
    memory_threads.set_number(guest, NOVA_HOST, INSTANCE)
    assert is_golden(guest, 'large-guest')
    _uuid, held = libvirt_xml.parse(guest.to_xml())
    assert [device.iommufd for device in held] == [True] * 4 + [False]


def test_number_of_threads_that_is_set_already_stays(guest):
    """So it stays if a later Nova sets it."""
    written_xml.change(guest.membacking, lambda backing: etree.SubElement(
        backing, 'allocation', threads='1'))
    memory_threads.set_number(guest, NOVA_HOST, INSTANCE)
    assert etree.fromstring(guest.to_xml()).xpath(
        'memoryBacking/allocation/@threads') == ['1']


@pytest.mark.parametrize('attributes', [
    {}, {'locked': True}, {'filesource': True}])
def test_memory_that_is_not_preallocated_has_no_threads(guest, attributes):
    guest.membacking = vconfig.LibvirtConfigGuestMemoryBacking()
    for name, value in attributes.items():
        setattr(guest.membacking, name, value)
    memory_threads.set_number(guest, NOVA_HOST, INSTANCE)
    assert b'allocation' not in etree.tostring(guest.membacking.format_dom())


# Behaviour of Nova that the code relies on

def test_nova_writes_neither_threads_nor_qemus_elements_nor_a_driver(guest):
    domain = etree.fromstring(guest.to_xml())
    assert domain.nsmap == {}
    assert domain.xpath('//allocation | //hostdev/driver') == []


def test_nova_writes_each_part_by_its_own_method(guest):
    """So a changed format_dom of a part is called."""
    for part in (guest, guest.membacking):
        written_xml.change(part, lambda element: element.set('ours', 'yes'))
    domain = etree.fromstring(guest.to_xml())
    assert domain.get('ours') == 'yes'
    assert domain.find('memoryBacking').get('ours') == 'yes'
