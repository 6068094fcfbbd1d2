# SPDX-License-Identifier: Apache-2.0
"""nova-api: validators for ``nova_accel:*``, and the way in.

Seam: the entry point ``nova.api.extra_spec_validators``, which nova-api loads
by itself; it is what brings nova_accel into nova-api at all.
"""

from nova.api.validation.extra_specs import base

from nova_accel.api import expansion
from nova_accel.core.request import affinity
from nova_accel.core.request import device_profile
from nova_accel.core.request import flavor_specs

_GROUP = {
    'name': 'group',
    'description': 'The group, as in resources_ACCEL0:.',
    'pattern': r'ACCEL\d+',
}

VALIDATORS = [
    base.ExtraSpecValidator(
        name=flavor_specs.EXPANDED_KEY,
        description='The device profile that was put into the flavor of a '
                    'server. Written by nova_accel; on a flavor, write '
                    f'{flavor_specs.PROFILE_KEY} instead.',
        value={'type': str, 'description': 'A device profile\'s name.'},
    ),
    base.ExtraSpecValidator(
        name=flavor_specs.NUMA_KEY + '{group}',
        description='Whether the devices of a group are to be on one NUMA '
                    'node with those of the other groups that say so, and '
                    'with the guest where that has a NUMA topology.',
        value={
            'type': str,
            'description': 'How much it matters.',
            'enum': [device_profile.REQUIRED, device_profile.PREFERRED],
        },
        parameters=[_GROUP],
    ),
    base.ExtraSpecValidator(
        name=flavor_specs.BITSTREAM_KEY + '{group}',
        description='What is to be programmed into the FPGA region of a '
                    'group before the server starts.',
        value={
            'type': str,
            'description': 'The uuid of a Glance image.',
            'pattern': r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}',
        },
        parameters=[_GROUP],
    ),
    base.ExtraSpecValidator(
        name=flavor_specs.COUNT_KEY + '{group}',
        description='How many groups a group stands for, whose amounts it '
                    'asks for. Written by nova_accel.',
        value={'type': int, 'description': 'How many.', 'min': 1,
               'max': device_profile.MAX_GROUPS},
        parameters=[_GROUP],
    ),
    base.ExtraSpecValidator(
        name=flavor_specs.FORBIDDEN_KEY + '{group}:{trait}',
        description='A trait that no device of a group may have. Written by '
                    'nova_accel.',
        value={'type': str, 'description': 'Says nothing more.',
               'enum': ['true']},
        parameters=[_GROUP, {'name': 'trait', 'description': 'The trait.',
                             'pattern': r'[A-Z0-9_]+'}],
    ),
    base.ExtraSpecValidator(
        name=affinity.PREFIX + '{number}',
        description='What groups have in common, or not. Written by '
                    'nova_accel.',
        value={'type': str, 'description': 'As in "required same '
               'numa_node 0-3".'},
        parameters=[{'name': 'number', 'description': 'In order.',
                     'pattern': r'\d+'}],
    ),
]


def register() -> list[base.ExtraSpecValidator]:
    """Called by Nova when nova-api starts."""
    expansion.install()
    return VALIDATORS
