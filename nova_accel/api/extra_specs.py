# SPDX-License-Identifier: Apache-2.0
"""nova-api: validators for ``nova_accel:*``, which also load nova_accel.

Seam: the entry point ``nova.api.extra_spec_validators``, which nova-api loads
at start. Nothing else loads nova_accel in nova-api.
"""

from nova.api.validation.extra_specs import base

from nova_accel.api import expansion
from nova_accel.core import host_domain
from nova_accel.core.request import affinity
from nova_accel.core.request import device_profile
from nova_accel.core.request import flavor_specs

_GROUP = {
    'name': 'group',
    'description': 'The name of the group, as in resources_ACCEL0:.',
    'pattern': r'ACCEL\d+',
}

VALIDATORS = [
    base.ExtraSpecValidator(
        name=flavor_specs.EXPANDED_KEY,
        description='The device profile that was expanded in the flavor of '
                    'a server. Written by nova_accel. To name a profile in a '
                    f'flavor, set {flavor_specs.PROFILE_KEY}.',
        value={'type': str, 'description': 'The name of a device profile.'},
    ),
    base.ExtraSpecValidator(
        name=flavor_specs.CLIQUES_KEY,
        description='Whether the guest is told which of its NVIDIA GPUs are '
                    'behind one PCIe switch. Written by nova_accel.',
        value={'type': str, 'description': 'Always true.', 'enum': ['true']},
    ),
    base.ExtraSpecValidator(
        name=flavor_specs.SAME_DOMAIN_KEY,
        description='Whether the servers of a server group, or of one '
                    'request, are to be in one host domain: on hosts of '
                    f'aggregates with the same {host_domain.KEY}.',
        value={
            'type': str,
            'description': 'Whether this is required or preferred.',
            'enum': [device_profile.REQUIRED, device_profile.PREFERRED],
        },
    ),
    base.ExtraSpecValidator(
        name=flavor_specs.NUMA_KEY + '{group}',
        description='Whether the devices of a group must be on the same NUMA '
                    'node as those of other groups with this extra spec, and '
                    'as the guest, if it has a NUMA topology.',
        value={
            'type': str,
            'description': 'Whether this is required or preferred.',
            'enum': [device_profile.REQUIRED, device_profile.PREFERRED],
        },
        parameters=[_GROUP],
    ),
    base.ExtraSpecValidator(
        name=flavor_specs.BITSTREAM_KEY + '{group}',
        description='The bitstream to program into the FPGA region of a '
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
        description='The number of equal groups that this group stands for; '
                    'its amounts are those of all of them. Written by '
                    'nova_accel.',
        value={'type': int, 'description': 'The number.', 'min': 1,
               'max': device_profile.MAX_GROUPS},
        parameters=[_GROUP],
    ),
    base.ExtraSpecValidator(
        name=flavor_specs.NAME_KEY + '{groups}',
        description='The name that the profile gives to some groups. Guests '
                    'can read it. Written by nova_accel.',
        value={'type': str, 'description': 'The name.'},
        parameters=[{'name': 'groups', 'description': 'The first group and '
                     'the number of the last one, as ACCEL0-3.',
                     'pattern': r'ACCEL\d+-\d+'}],
    ),
    base.ExtraSpecValidator(
        name=flavor_specs.SWITCHES_KEY,
        description='Whether devices that share a PCIe switch of the host '
                    'share one in the guest. Written by nova_accel.',
        value={'type': str, 'description': 'Always true.',
               'enum': ['true']},
    ),
    base.ExtraSpecValidator(
        name=flavor_specs.FORBIDDEN_KEY + '{group}:{trait}',
        description='A trait that the devices of a group must not have. '
                    'Written by nova_accel.',
        value={'type': str, 'description': 'Always true.',
               'enum': ['true']},
        parameters=[_GROUP, {'name': 'trait', 'description': 'The trait.',
                             'pattern': r'[A-Z0-9_]+'}],
    ),
    base.ExtraSpecValidator(
        name=flavor_specs.ANY_KEY + '{group}-{number}',
        description='An alternative of a group: the traits that its devices '
                    'must have. Written by nova_accel.',
        value={'type': str, 'description': 'The traits, with commas.',
               'pattern': r'[A-Z0-9_,]*'},
        parameters=[_GROUP, {'name': 'number', 'description': 'The index of '
                             'the alternative.', 'pattern': r'\d+'}],
    ),
    base.ExtraSpecValidator(
        name=flavor_specs.PER_KEY,
        description='Whether a server gets the first alternative that fits '
                    'on its host, and not the first that fits on any host. '
                    'Written by nova_accel.',
        value={'type': str, 'description': 'Always host.',
               'enum': [device_profile.HOST]},
    ),
    base.ExtraSpecValidator(
        name=affinity.PREFIX + '{number}',
        description='An affinity rule of the groups. Written by nova_accel.',
        value={'type': str, 'description': 'The rule, such as "required same '
               'numa_node 0-3".'},
        parameters=[{'name': 'number', 'description': 'The index of the rule.',
                     'pattern': r'\d+'}],
    ),
]


def register() -> list[base.ExtraSpecValidator]:
    """Return the validators, and install nova_accel; called by nova-api."""
    expansion.install()
    return VALIDATORS
