# SPDX-License-Identifier: Apache-2.0
"""Read the devices that libvirt domains hold from their XML.

XML: libvirt's formatdomain, "Host device assignment". Network interfaces of
type hostdev and disks of type nvme hold functions in the same way. Domains
that are not Nova's are read, too. Cliques of GPUs: drvqemu, "Overriding
properties of QEMU devices".
"""

import collections.abc
import contextlib
import dataclasses
import math
import re
import typing

from lxml import etree

from nova_accel.core import errors
from nova_accel.core import hostdev
from nova_accel.core import model
from nova_accel.core.guest import cliques
from nova_accel.core.guest import guest_buses
from nova_accel.core.guest import guest_document

#: The namespace of QEMU's elements, as lxml writes it before a name.
QEMU = '{http://libvirt.org/schemas/domain/qemu/1.0}'


class VirDomain(typing.Protocol):
    """The part of ``libvirt.virDomain`` that is used here."""

    def XMLDesc(self, flags: int) -> str:
        """Return its XML."""

    def UUIDString(self) -> str:
        """Return its uuid."""


#: The module ``libvirt``, or a replacement for it.
Libvirt = typing.Any


@dataclasses.dataclass(frozen=True)
class Domain:
    """The hostdevs of one libvirt domain.

    A suspended guest has released its devices; its definition keeps them.

    :param held: the hostdevs of its definition and of its running guest
    :param lacks: the hostdevs of its definition that its running guest does
        not have
    """

    held: hostdev.Hostdevs
    lacks: hostdev.Hostdevs


def read_domain(domain: VirDomain, libvirt: Libvirt) -> Domain | None:
    """Read the hostdevs of a domain; None if the domain no longer exists.

    :param domain: running or not
    :raises errors.AssignmentError: if libvirt does not return the XML
    """
    xmls = [describe(domain, flags, libvirt)
            for flags in (libvirt.VIR_DOMAIN_XML_INACTIVE, 0)]
    if not any(xmls):
        return None
    defined, running = (parse(xml)[1] if xml else () for xml in xmls)
    # The definition comes last: a guest that was taken over keeps the aliases
    # with which it was started.
    by_address = {device.address: device for device in (*running, *defined)}
    attached = {device.address for device in running}
    return Domain(tuple(by_address.values()), tuple(
        device for device in defined if device.address not in attached))


def read(domains: collections.abc.Iterable[VirDomain], libvirt: Libvirt,
         ) -> dict[str, hostdev.Hostdevs]:
    """Return the hostdevs of each domain by the domain's uuid.

    :raises errors.AssignmentError: if one of the domains cannot be read
    """
    return {domain.UUIDString(): found.held for domain in domains
            if (found := read_domain(domain, libvirt))}


def describe(domain: VirDomain, flags: int, libvirt: Libvirt) -> str:
    """Return a domain's XML, or '' if the domain was removed meanwhile.

    :raises errors.AssignmentError: if libvirt does not return it
    """
    try:
        return domain.XMLDesc(flags)
    except libvirt.libvirtError as error:
        # Any other error leaves it unknown what the domain holds.
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return ''
        raise errors.AssignmentError(
            'libvirt', f'cannot return the XML of a domain: {error}'
        ) from None


def parse(xml: str) -> tuple[str, hostdev.Hostdevs]:
    """Return a domain's uuid and the PCI functions and mdevs that it holds.

    :raises errors.AssignmentError: if the XML cannot be parsed
    """
    with _domain(xml) as domain:
        return domain.findtext('uuid', ''), _hostdevs(domain)


def guest_buses_of(xml: str) -> guest_buses.GuestBuses:
    """Return the PCI buses that a domain gives to its guest.

    Controllers without an index have no devices of ours.

    :raises errors.AssignmentError: if the XML cannot be parsed
    """
    with _domain(xml) as domain:
        nodes = _guest_nodes(domain)
        return guest_buses.GuestBuses(
            _controller(element, nodes) for element in domain.iterfind(
                './devices/controller[@type="pci"][@index]'))


def numa_cells_of(xml: str) -> list[guest_document.Cell]:
    """Return the NUMA cells of a domain, as the guest numbers them.

    :raises errors.AssignmentError: if the XML cannot be parsed
    """
    with _domain(xml) as domain:
        nodes = _guest_nodes(domain)
        return sorted((guest_document.Cell(nodes[_id(cell)],
                                           cell.get('cpus', ''))
                       for cell in domain.iterfind('./cpu/numa/cell')),
                      key=lambda cell: cell.id)


@contextlib.contextmanager
def _domain(xml: str) -> collections.abc.Iterator[etree._Element]:
    try:
        yield etree.fromstring(xml)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise errors.AssignmentError(
            'libvirt', 'returned XML of a domain that cannot be parsed: '
            + errors.quote(str(error))) from None


def _guest_nodes(domain: etree._Element) -> dict[int, int]:
    """Return the guest's number of each NUMA cell, by the cell's id.

    Linux numbers nodes in the order in which ACPI's table SRAT names them
    (drivers/acpi/numa/srat.c, ``acpi_map_pxm_to_node``). QEMU writes the CPUs
    first, in their order, and then the memory (hw/i386/acpi-build.c,
    ``build_srat``).
    """
    def first_cpu(cell: etree._Element) -> tuple[float, int]:
        cpus = re.findall('[0-9]+', cell.get('cpus', ''))
        return min(map(int, cpus), default=math.inf), _id(cell)

    return {_id(cell): number for number, cell in enumerate(
        sorted(domain.iterfind('./cpu/numa/cell'), key=first_cpu))}


def _id(cell: etree._Element) -> int:
    return int(cell.get('id', ''))


def with_aliases(xml: str, aliases: collections.abc.Mapping[model.Address,
                                                            str]) -> str:
    """Return a domain's XML with other aliases for some hostdevs.

    :raises errors.AssignmentError: if the XML cannot be parsed
    """
    with _domain(xml) as domain:
        for element, address in _holding(domain):
            if name := aliases.get(address):
                alias = element.find('alias')
                if alias is None:
                    alias = etree.SubElement(element, 'alias')
                alias.set('name', name)
        return etree.tostring(domain, encoding='unicode')


def _holding(domain: etree._Element) -> collections.abc.Iterator[
        tuple[etree._Element, model.Address]]:
    """Yield each element that holds a function or an mdev, and its address."""
    for element in domain.iterfind('./devices/*'):
        for source in element.iterfind('source/address'):
            # USB and SCSI addresses have a bus as well, but no slot.
            if {'slot', 'uuid'}.intersection(source.keys()):
                yield element, _address(source)


def _hostdevs(domain: etree._Element) -> hostdev.Hostdevs:
    cliques_ = _cliques(domain)
    return tuple(
        hostdev.Hostdev(address, _alias(element),
                        element.get('managed', 'yes') == 'yes',
                        _guest_address(element),
                        element.find('driver[@iommufd="yes"]') is not None,
                        cliques_.get(_alias(element), ''))
        for element, address in _holding(domain))


def _controller(element: etree._Element, nodes: dict[int, int],
                ) -> guest_buses.Controller:
    number = element.find('target[@busNr]')
    cell = element.findtext('target/node')
    return guest_buses.Controller(
        int(element.get('index', '')), element.get('model', ''),
        _guest_address(element),
        None if number is None else int(number.get('busNr', '')),
        None if cell is None else nodes.get(int(cell), int(cell)))


def _cliques(domain: etree._Element) -> dict[str, str]:
    """Return the cliques of GPUs by alias."""
    return {alias: found.get('value', '')
            for device in domain.iterfind(f'{QEMU}override/{QEMU}device')
            if (alias := device.get('alias'))
            for found in device.iterfind(
                f'{QEMU}frontend/{QEMU}property[@name="{cliques.PROPERTY}"]')}


def _address(element: etree._Element) -> model.Address:
    uuid = element.get('uuid')
    return model.MdevAddress(uuid) if uuid else _pci_address(element)


def _guest_address(element: etree._Element) -> model.PciAddress | None:
    address = element.find('address[@type="pci"]')
    return None if address is None else _pci_address(address)


def _pci_address(element: etree._Element) -> model.PciAddress:
    return model.PciAddress(*(
        int(element.get(part, '0'), 16)
        for part in ('domain', 'bus', 'slot', 'function')))


def _alias(element: etree._Element) -> str:
    alias = element.find('alias')
    return '' if alias is None else alias.get('name', '')
