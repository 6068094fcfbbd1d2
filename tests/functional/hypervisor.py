# SPDX-License-Identifier: Apache-2.0
"""Nova's fake libvirt, changed to treat hostdevs as libvirt does.

The fake invents aliases, supports mdevs only in part and drops PCI buses and
elements of QEMU's namespace. It keeps one definition of a domain. libvirt
keeps two: the persistent definition and the definition of the running guest.
"""

import contextlib
import copy
from urllib import parse

import fixtures
from lxml import etree
from nova.tests.fixtures import libvirt as fakelibvirt

from nova_accel.host import libvirt_xml
from tests import kernel

Mdevs = kernel.Mdevs


class Hostdevs(fixtures.Fixture):
    """Keep the hostdevs of domains as they were defined or attached."""

    def _setUp(self):
        self._wrap('_parse_definition', _parse_definition)
        self._wrap('XMLDesc', _describe)
        self._wrap('createWithFlags', _start)
        self._wrap('managedSave', _save)
        self._wrap('managedSaveRemove', _forget_saved)
        self._wrap('attachDevice', _attach)
        self._wrap('detachDevice', _detach)
        self._wrap('resume', _resume)

        define = fakelibvirt.Connection.defineXML
        self.useFixture(fixtures.MonkeyPatch(
            'nova.tests.fixtures.libvirt.Connection.defineXML',
            lambda connection, xml: _define(define, connection, xml)))

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
    domain.controllers = devices.findall('controller[@type="pci"]')
    # The hostdevs of the running guest.
    domain.plugged = copy.deepcopy(domain.hostdevs)
    domain.saved = None
    # Hostdevs whose detachment the guest has not completed yet.
    domain.asked = []
    return theirs(domain, xml)


def _define(theirs, connection, xml):
    """Define a domain; if it runs, change only its persistent definition."""
    name = etree.fromstring(xml).findtext('name')
    domain = connection._vms.get(name)
    if domain is None or domain._state not in (
            fakelibvirt.VIR_DOMAIN_RUNNING, fakelibvirt.VIR_DOMAIN_PAUSED):
        return theirs(connection, xml)
    domain.defined_xml = xml
    domain.hostdevs = etree.fromstring(xml).findall('devices/hostdev')
    return domain


def _describe(theirs, domain, flags):
    tree = etree.fromstring(theirs(domain, flags))
    devices = tree.find('devices')
    for element in devices.findall('hostdev'):
        devices.remove(element)
    devices.extend(copy.deepcopy(domain.controllers))
    asleep = domain.saved is not None or domain._state in (
        fakelibvirt.VIR_DOMAIN_SHUTOFF, fakelibvirt.VIR_DOMAIN_SHUTDOWN)
    devices.extend(copy.deepcopy(
        domain.hostdevs
        if asleep or flags & fakelibvirt.VIR_DOMAIN_XML_INACTIVE
        else domain.plugged))
    tree.extend(etree.fromstring(domain.defined_xml).findall(
        f'{libvirt_xml.QEMU}override'))
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
    domain.asked.append(_source(etree.fromstring(xml)))
    if domain._state != fakelibvirt.VIR_DOMAIN_PAUSED:
        _let_go(domain)
    return True


def _resume(theirs, domain):
    _let_go(domain)
    return theirs(domain)


def _let_go(domain):
    domain.plugged = [element for element in domain.plugged
                      if _source(element) not in domain.asked]
    domain.asked = []


def _source(element):
    return dict(element.find('source/address').attrib)


class Migration(fixtures.Fixture):
    """Implement live migration, which the fake lacks.

    :param computes: nova-compute services by host
    """

    def __init__(self, computes):
        self._computes = computes
        #: Called with the domain and the destination's XML before the domain
        #: starts there. It can raise the error that libvirt raises.
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


@contextlib.contextmanager
def down_from_definition(host):
    """Let libvirtd end when a domain is about to be defined.

    :param host: nova.virt.libvirt.host.Host
    :returns: a context whose value is true as soon as libvirtd has ended
    """
    listed, down = host.list_instance_domains, []
    error = fakelibvirt.make_libvirtError(
        fakelibvirt.libvirtError, 'Failed to connect socket',
        error_code=fakelibvirt.VIR_ERR_INTERNAL_ERROR)

    def lists(*args, **kwargs):
        if down:
            raise error
        return listed(*args, **kwargs)

    def define(_xml):
        down.append(True)
        raise error

    with (fixtures.MockPatchObject(host, 'list_instance_domains', lists),
          fixtures.MockPatchObject(host, 'write_instance_config', define)):
        yield down


def without_guests():
    """Return a context in which no guest can be created."""
    return fixtures.MockPatch(
        'nova.virt.libvirt.LibvirtDriver._create_guest_with_network',
        side_effect=RuntimeError('no'))
