# SPDX-License-Identifier: Apache-2.0
"""What is programmed into an FPGA, by name: functions, regions, bitstreams.

A function is what a bitstream makes of a region; the region's id says which
bitstreams fit. Both are 128 bits: uuids, which the kernel writes without
hyphens. Traits are those of Cyborg's drivers where it has one for the same
(cyborg/accelerator/drivers/fpga), so that its profiles fit here.
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
#: Cards that Cyborg has a trait for.
_CARDS = {('8086', '09c4'): 'CUSTOM_FPGA_INTEL_PAC_ARRIA10'}
#: Its driver for Intel's names cards by the above, the others by their id.
_NAMED_CARDS = '8086'

# Properties of a bitstream's image: Cyborg's code, the scripts that come with
# it, and its specification of metadata have a name each.
_FUNCTION_KEYS = ('accel:function_id', 'accel:function_uuid', 'function_uuid')
_REGION_KEYS = ('accel:region_type_id', 'accel:region_id',
                'accel:region_uuid', 'region_uuid')
_VENDOR_KEYS = ('accel:vendor', 'vendor')
_KEYS = frozenset((*_FUNCTION_KEYS, *_REGION_KEYS, *_VENDOR_KEYS))


def read_id(text: str) -> str:
    """A uuid, with hyphens or without, as 32 lower-case digits.

    :raises ValueError: if it is none
    """
    if not _ID.fullmatch(text):
        raise ValueError(f'{errors.quote(text)} is not a uuid')
    return text.replace('-', '').lower()


def function_trait(function: str) -> str:
    """The trait of what has a function, whoever made it.

    :param function: 32 digits
    """
    return _FUNCTION + function.upper()


def is_function_trait(trait: str) -> bool:
    return trait.startswith(_FUNCTION)


def traits(vendor_id: str, product_id: str,
           functions: collections.abc.Iterable[str],
           regions: collections.abc.Iterable[str]) -> frozenset[str]:
    """The traits of an FPGA region.

    :param vendor_id: four lower-case hexadecimal digits, as is product_id;
        of the card
    :param functions: what is programmed, 32 digits each
    :param regions: which bitstreams fit, 32 digits each
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
    """A bitstream on this host, and what its image says of it.

    :param image: its image's uuid
    :param path: the file
    :param function: what it makes of a region, 32 digits, or ''
    :param region: the region that it was made for, 32 digits, or ''
    :param vendor: of the card that it was made for, in the image's words
    :param shared: whether others hold the same region for the same bitstream
    :param rivals: servers for whose sake the region must stay as it is
    """

    image: str
    path: str
    function: str = ''
    region: str = ''
    vendor: str = ''
    shared: bool = False
    rivals: tuple[str, ...] = ()

    @property
    def thing(self) -> str:
        """What messages call it."""
        return f'bitstream {self.image}'

    def check_fits(self, vendor_id: str,
                   regions: collections.abc.Collection[str]) -> None:
        """Check that it was made for a region, as far as both say.

        :param vendor_id: the card's
        :param regions: ids of what fits, or none
        :raises errors.AssignmentError: if it was made for another
        """
        if self.region and regions and self.region not in regions:
            raise errors.AssignmentError(
                self.thing, f'is made for region {self.region}, and this one '
                f'is {", ".join(sorted(regions))}')
        vendor = _VENDORS.get(vendor_id, '')
        if self.vendor and vendor and self.vendor.casefold() not in (
                vendor.casefold(), vendor_id):
            raise errors.AssignmentError(
                self.thing, f'is made for cards of '
                f'{errors.quote(self.vendor)}, and this one is of '
                f'{vendor.title()}')


def declared(image: str, path: str,
             properties: collections.abc.Mapping[str, object]) -> Bitstream:
    """A bitstream with what its image's properties say of it.

    :raises errors.AssignmentError: if they say nonsense
    """
    return Bitstream(
        image, path, _declared_id(image, properties, _FUNCTION_KEYS),
        _declared_id(image, properties, _REGION_KEYS),
        str(_first(properties, _VENDOR_KEYS)[1]).strip())


def heeded(properties: collections.abc.Mapping[str, object],
           ) -> dict[str, str]:
    """Those of an image's properties that :func:`declared` goes by."""
    return {key: value for key, value in properties.items()
            if key in _KEYS and isinstance(value, str)}


def _declared_id(image, properties, keys) -> str:
    key, value = _first(properties, keys)
    try:
        return read_id(str(value).strip()) if value else ''
    except ValueError as error:
        raise errors.AssignmentError(
            f'bitstream {image}', f'its image\'s property {key} {error}',
            'set it to the id that the bitstream was made with') from None


def _first(properties, keys) -> tuple[str, object]:
    return next(((key, properties[key]) for key in keys
                 if properties.get(key)), ('', ''))
