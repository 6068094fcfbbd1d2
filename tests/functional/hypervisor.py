# SPDX-License-Identifier: Apache-2.0
"""Nova's fake libvirt, made to treat hostdevs as the real one does.

The fake makes up aliases, knows mdevs only by halves, and has one definition
of a domain where libvirt has two: what it is to start with, and what it has
while it runs.
"""

import copy
import pathlib
from urllib import parse

import fixtures
from lxml import etree
from nova.tests.fixtures import libvirt as fakelibvirt

from nova_accel.host import privileged


class Hostdevs(fixtures.Fixture):
    """Hostdevs as they were defined, plugged and unplugged."""

    def _setUp(self):
        self._wrap('_parse_definition', _parse_definition)
        self._wrap('XMLDesc', _describe)
        self._wrap('createWithFlags', _start)
        self._wrap('managedSave', _save)
        self._wrap('managedSaveRemove', _forget_saved)
        self._wrap('attachDevice', _attach)
        self._wrap('detachDevice', _detach)

    def _wrap(self, name, ours):
        theirs = getattr(fakelibvirt.Domain, name)
        self.useFixture(fixtures.MonkeyPatch(
            f'nova.tests.fixtures.libvirt.Domain.{name}',
            lambda domain, *args, **kwargs: ours(
                theirs, domain, *args, **kwargs)))


def _parse_definition(theirs, domain, xml):
    domain.defined_xml = xml
    devices = etree.fromstring(xml).find('devices')
    domain.hostdevs = devices.findall('hostdev') if len(devices) else []
    # What it has while it runs.
    domain.plugged = copy.deepcopy(domain.hostdevs)
    domain.saved = None
    return theirs(domain, xml)


def _describe(theirs, domain, flags):
    tree = etree.fromstring(theirs(domain, flags))
    devices = tree.find('devices')
    for element in devices.findall('hostdev'):
        devices.remove(element)
    asleep = domain.saved is not None or domain._state in (
        fakelibvirt.VIR_DOMAIN_SHUTOFF, fakelibvirt.VIR_DOMAIN_SHUTDOWN)
    devices.extend(copy.deepcopy(
        domain.hostdevs
        if asleep or flags & fakelibvirt.VIR_DOMAIN_XML_INACTIVE
        else domain.plugged))
    return etree.tostring(tree, encoding='unicode')


def _start(theirs, domain, flags=0):
    domain.plugged = (copy.deepcopy(domain.hostdevs)
                      if domain.saved is None else domain.saved)
    domain.saved = None
    return theirs(domain, flags)


def _save(theirs, domain, flags=0):
    domain.saved = domain.plugged
    return theirs(domain, flags)


def _forget_saved(theirs, domain, flags=0):
    domain.saved = None
    return theirs(domain, flags)


def _attach(theirs, domain, xml):
    if not xml.startswith('<hostdev'):
        return theirs(domain, xml)
    domain.plugged.append(etree.fromstring(xml))
    return True


def _detach(theirs, domain, xml):
    if not xml.startswith('<hostdev'):
        return theirs(domain, xml)
    wanted = _source(etree.fromstring(xml))
    domain.plugged = [element for element in domain.plugged
                      if _source(element) != wanted]
    return True


def _source(element):
    return dict(element.find('source/address').attrib)


class Migration(fixtures.Fixture):
    """Live migration: the fake has none.

    :param computes: nova-compute services by host
    """

    def __init__(self, computes):
        self._computes = computes
        #: Called with the domain and the XML for the destination, before it
        #: starts there; what it raises is what libvirt raises.
        self.on_move = lambda domain, xml: None

    def _setUp(self):
        def migrate(domain, uri, params, flags):
            xml = params['destination_xml']
            try:
                self.on_move(domain, xml)
            except fakelibvirt.libvirtError:
                domain.fail_job()
                raise
            destination = self._computes[parse.urlparse(uri).hostname]
            destination.driver._host.get_connection().createXML(xml, 0)
            domain.complete_job()

        self.useFixture(fixtures.MonkeyPatch(
            'nova.tests.fixtures.libvirt.Domain.migrateToURI3', migrate))


class Mdevs(fixtures.Fixture):
    """What a kernel does where mdevs are made and removed.

    Source: Documentation/ABI/testing/sysfs-bus-vfio-mdev.
    """

    def _setUp(self):
        privileged.context.set_client_mode(False)
        self.addCleanup(privileged.context.set_client_mode, True)
        self.useFixture(fixtures.MonkeyPatch(
            'nova_accel.host.privileged._write', self._write))

    @staticmethod
    def _write(path, text):
        path = pathlib.Path(path)
        if path.name == 'create':
            _create_mdev(path.parent, text)
        else:
            _remove_mdev(path.parent)


def _create_mdev(mdev_type, uuid):
    """The driver makes one, and has no room for another type then."""
    if not (mdev_type / 'available_instances').exists():
        raise FileNotFoundError(2, 'No such file or directory')
    available = int((mdev_type / 'available_instances').read_text())
    if available < 1:
        raise OSError(22, 'Invalid argument')
    (mdev_type / 'devices' / uuid).mkdir(parents=True)
    for other in mdev_type.parent.iterdir():
        (other / 'available_instances').write_text(
            f'{available - 1 if other == mdev_type else 0}\n')
    # /sys/bus/mdev/devices/<uuid> leads to the device.
    bus = _sysfs(mdev_type) / 'bus/mdev/devices'
    bus.mkdir(parents=True, exist_ok=True)
    (bus / uuid).symlink_to(mdev_type / 'devices' / uuid)


def _remove_mdev(device):
    place = device.resolve()
    if not place.exists():
        raise FileNotFoundError(2, 'No such file or directory')
    mdev_type = place.parent.parent
    device.unlink()
    place.rmdir()
    left = sum(1 for other in mdev_type.parent.iterdir()
               for _uuid in (other / 'devices').glob('*'))
    for other in mdev_type.parent.iterdir():
        room = int((other / 'available_instances').read_text())
        if other == mdev_type:
            room += 1
        elif not left:
            room = 1
        (other / 'available_instances').write_text(f'{room}\n')


def _sysfs(path):
    while not (path / 'bus').is_dir():
        path = path.parent
    return path
