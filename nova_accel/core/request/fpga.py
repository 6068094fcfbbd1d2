# SPDX-License-Identifier: Apache-2.0
"""FPGAs: ids of functions and regions, their traits, and bitstreams.

A bitstream programs a function into a region. The region's id says which
bitstreams fit. Both ids are uuids, which the kernel writes without hyphens.
Traits have the names of Cyborg's drivers where Cyborg has one
(cyborg/accelerator/drivers/fpga), so that its profiles work here.
"""

import collections.abc
import dataclasses
import re

from nova_accel.core import errors

_ID = re.compile(r'[0-9a-f]{8}(-?)[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{4}\1'
                 r'[0-9a-f]{12}', re.IGNORECASE)

_FUNCTION = 'CUSTOM_FPGA_FUNCTION_ID_'
_REGION = 'CUSTOM_FPGA_REGION_ID_'

#: Vendors as Cyborg's traits call them, by PCI vendor id.
_VENDORS = {'8086': 'INTEL', '10ee': 'XILINX', '1bd4': 'INSPUR'}
#: Cards that have a trait of their own in Cyborg.
_CARDS = {('8086', '09c4'): 'CUSTOM_FPGA_INTEL_PAC_ARRIA10'}
#: Cyborg names this vendor's cards as above, others by their product id.
_NAMED_CARDS = '8086'

# Properties of a bitstream's image, as named by Cyborg's code, by its scripts
# and by its specification of metadata.
_FUNCTION_KEYS = ('accel:function_id', 'accel:function_uuid', 'function_uuid')
_REGION_KEYS = ('accel:region_type_id', 'accel:region_id',
                'accel:region_uuid', 'region_uuid')
_VENDOR_KEYS = ('accel:vendor', 'vendor')
_KEYS = frozenset((*_FUNCTION_KEYS, *_REGION_KEYS, *_VENDOR_KEYS))


def read_id(text: str) -> str:
    """Return a uuid, with or without hyphens, as 32 lower-case digits.

    :raises ValueError: if the text is not a uuid
    """
    if not _ID.fullmatch(text):
        raise ValueError(f'{errors.quote(text)} is not a uuid')
    return text.replace('-', '').lower()


def function_trait(function: str) -> str:
    """Return the trait of a function, whatever the card's vendor.

    :param function: its id, 32 digits
    """
    return _FUNCTION + function.upper()


def is_function_trait(trait: str) -> bool:
    """Whether a trait is that of a function."""
    return trait.startswith(_FUNCTION)


def traits(vendor_id: str, product_id: str,
           functions: collections.abc.Iterable[str],
           regions: collections.abc.Iterable[str]) -> frozenset[str]:
    """Return the traits of an FPGA region.

    :param vendor_id: of the card, four lower-case hexadecimal digits
    :param product_id: the same
    :param functions: ids of the programmed functions, 32 digits each
    :param regions: ids of the region, 32 digits each
    """
    found = {*map(function_trait, functions),
             *(_REGION + region.upper() for region in regions)}
    vendor = _VENDORS.get(vendor_id)
    if vendor:
        found.add(f'CUSTOM_FPGA_{vendor}')
        found.update(f'{_FUNCTION}{vendor}_{function.upper()}'
                     for function in functions)
        found.update(f'CUSTOM_FPGA_REGION_{vendor}_{region.upper()}'
                     for region in regions)
    if vendor and vendor_id != _NAMED_CARDS:
        found.add(f'CUSTOM_FPGA_PRODUCT_ID_{product_id.upper()}')
    elif (vendor_id, product_id) in _CARDS:
        found.add(_CARDS[vendor_id, product_id])
    return frozenset(found)


@dataclasses.dataclass(frozen=True)
class Bitstream:
    """A bitstream on this host, with the properties of its image.

    :param image: uuid of the image
    :param path: of the file
    :param function: id of the function that it programs, 32 digits, or ''
    :param region: id of the region that it was made for, 32 digits, or ''
    :param vendor: of the card that it was made for, as the image has it
    :param shared: whether another server, or another group of the same one,
        uses this bitstream in the same region
    :param shared_with_others: whether another server does
    :param conflicting_servers: servers that need the region as it is
        programmed now
    """

    image: str
    path: str
    function: str = ''
    region: str = ''
    vendor: str = ''
    shared: bool = False
    shared_with_others: bool = False
    conflicting_servers: tuple[str, ...] = ()

    @property
    def thing(self) -> str:
        """The bitstream's name in messages."""
        return f'bitstream {self.image}'

    def check_fits(self, vendor_id: str,
                   regions: collections.abc.Collection[str]) -> None:
        """Check that the bitstream fits a region, as far as is known.

        :param vendor_id: of the card
        :param regions: ids of the region, or none if unknown
        :raises errors.AssignmentError: if it was made for another region
        """
        if self.region and regions and self.region not in regions:
            raise errors.AssignmentError(
                self.thing, f'is made for region {self.region}, but this '
                f'region is {", ".join(sorted(regions))}')
        vendor = _VENDORS.get(vendor_id, '')
        if self.vendor and vendor and self.vendor.casefold() not in (
                vendor.casefold(), vendor_id):
            raise errors.AssignmentError(
                self.thing, f'is made for cards of '
                f'{errors.quote(self.vendor)}, but this card is of '
                f'{vendor.title()}')


def from_image(image: str, path: str,
               properties: collections.abc.Mapping[str, object]) -> Bitstream:
    """Return a bitstream with the properties of its image.

    :raises errors.AssignmentError: if a property is not a valid id
    """
    return Bitstream(
        image, path, _declared_id(image, properties, _FUNCTION_KEYS),
        _declared_id(image, properties, _REGION_KEYS),
        str(_first(properties, _VENDOR_KEYS)[1]).strip())


def relevant_properties(properties: collections.abc.Mapping[str, object],
                        ) -> dict[str, str]:
    """Return the properties of an image that :func:`from_image` reads."""
    return {key: value for key, value in properties.items()
            if key in _KEYS and isinstance(value, str)}


def _declared_id(image: str,
                 properties: collections.abc.Mapping[str, object],
                 keys: collections.abc.Iterable[str]) -> str:
    key, value = _first(properties, keys)
    try:
        return read_id(str(value).strip()) if value else ''
    except ValueError as error:
        raise errors.AssignmentError(
            f'bitstream {image}', f'its image\'s property {key} {error}',
            'set it to the id that the bitstream was made with') from None


def _first(properties: collections.abc.Mapping[str, object],
           keys: collections.abc.Iterable[str]) -> tuple[str, object]:
    return next(((key, properties[key]) for key in keys
                 if properties.get(key)), ('', ''))
