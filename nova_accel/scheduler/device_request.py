# SPDX-License-Identifier: Apache-2.0
"""The devices that a request specification of Nova asks for."""

from nova_accel.core.request import flavor_request
from nova_accel.core.request import flavor_specs


def of(spec_obj) -> flavor_request.Request:
    """Return the devices that a server asks for.

    :param spec_obj: nova.objects.RequestSpec
    """
    return flavor_request.parse(
        spec_obj.flavor.extra_specs, flavor_specs.image_traits(
            spec_obj.image if 'image' in spec_obj else None))
