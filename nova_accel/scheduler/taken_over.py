# SPDX-License-Identifier: Apache-2.0
"""The request of a server that nova-compute has taken over.

nova-compute changes the flavor of such a server (:mod:`nova_accel.compute.
adoption`), but has no access to the request specification of the server, which
Nova uses for a later move. So correct it here, for each move. It does the same
for resource classes that have become another class.

Seams: ``nova.objects.RequestSpec``, ``InstanceMapping`` and ``Instance``.
"""

from nova import context
from nova import exception
from nova import objects

from nova_accel import moved_flavors
from nova_accel.core.assignment import adoption
from nova_accel.core.request import flavor_specs


def correct(spec) -> None:
    """Replace the flavor and the PCI requests of before, in place.

    :param spec: nova.objects.RequestSpec
    """
    if 'flavor' not in spec or 'extra_specs' not in spec.flavor:
        return
    if adoption.is_candidate(spec.flavor.extra_specs):
        flavor = _flavor(spec)
        if not flavor or flavor.flavorid != spec.flavor.flavorid:
            return
        spec.flavor = flavor
    if (flavor_specs.EXPANDED_KEY in spec.flavor.extra_specs
            and flavor_specs.ALIAS_KEY not in spec.flavor.extra_specs
            and 'pci_requests' in spec and spec.pci_requests):
        spec.pci_requests.requests = [
            request for request in spec.pci_requests.requests
            if request.source != objects.InstancePCIRequest.FLAVOR_ALIAS]
    spec.flavor = moved_flavors.current(spec.flavor)


def _flavor(spec):
    """Return a server's own flavor if it was taken over."""
    if 'instance_uuid' not in spec or not spec.instance_uuid:
        return None
    admin = context.get_admin_context()
    try:
        cell = objects.InstanceMapping.get_by_instance_uuid(
            admin, spec.instance_uuid).cell_mapping
        if not cell:
            return None
        with context.target_cell(admin, cell) as there:
            flavor = objects.Instance.get_by_uuid(
                there, spec.instance_uuid, expected_attrs=['flavor']).flavor
    except (exception.InstanceMappingNotFound, exception.InstanceNotFound):
        return None
    return flavor if flavor_specs.EXPANDED_KEY in flavor.extra_specs else None
