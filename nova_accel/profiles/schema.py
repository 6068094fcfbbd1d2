# SPDX-License-Identifier: Apache-2.0
"""The JSON Schemas (draft 2020-12) of a profile document.

There are two, for our format and for Cyborg's. Cyborg's documents can have
other top-level keys: its API returns ``links`` and dates. In our format an
unknown key is an error, as it is usually a misspelled one.
"""

from nova_accel.core.request import affinity
from nova_accel.core.request import device_profile

_NAME = {'type': 'string', 'pattern': r'^[A-Za-z0-9_-]{1,255}\Z'}
_TRAIT = {'enum': [device_profile.REQUIRED, device_profile.FORBIDDEN]}
_GROUPS = {'type': 'array', 'minItems': 1,
           'maxItems': device_profile.MAX_GROUPS}

_GROUP_NAME = {'type': 'string', 'pattern': r'^[A-Za-z][A-Za-z0-9_-]{0,63}\Z'}
_COMMON = {'enum': list(affinity.KEYS)}
_AFFINITY = {'type': 'array', 'items': {
    'type': 'object',
    'additionalProperties': False,
    'properties': {
        'same': _COMMON,
        'distinct': _COMMON,
        'groups': {'type': 'array', 'minItems': 1,
                   # The two others are the guest and the network.
                   'maxItems': device_profile.MAX_GROUPS + 2,
                   'items': {'type': ['string', 'integer']}},
        'each': {'type': 'boolean'},
        'policy': {'enum': [device_profile.REQUIRED,
                            device_profile.PREFERRED]},
        'weight': {'type': 'integer', 'minimum': 1,
                   'maximum': affinity.MAX_WEIGHT},
    },
}}
# Keys that apply to all groups, in both formats.
_ALL_GROUPS = {'group_policy': {'enum': ['none', device_profile.ISOLATE]},
               'affinity': _AFFINITY,
               'guest_switches': {'type': 'boolean'},
               'gpu_cliques': {'type': 'boolean'},
               'same_domain': {'enum': [device_profile.REQUIRED,
                                        device_profile.PREFERRED]}}
_PER = {'enum': [device_profile.CLOUD, device_profile.HOST]}

OURS = {
    'type': 'object',
    'required': ['name', 'groups'],
    'additionalProperties': False,
    'properties': {
        'name': _NAME,
        'description': {'type': 'string'},
        **_ALL_GROUPS,
        'per': _PER,
        'groups': {**_GROUPS, 'items': {
            'type': 'object',
            'required': ['resources'],
            'additionalProperties': False,
            'properties': {
                'name': _GROUP_NAME,
                'resources': {
                    'type': 'object',
                    'additionalProperties': {
                        'type': 'integer', 'minimum': 1,
                        'maximum': device_profile.MAX_AMOUNT},
                },
                'traits': {'type': 'object', 'additionalProperties': _TRAIT},
                'count': {'type': 'integer', 'minimum': 1,
                          'maximum': device_profile.MAX_GROUPS},
                # YAML 1.1 reads an unquoted off as false.
                'numa': {'enum': [device_profile.REQUIRED,
                                  device_profile.PREFERRED,
                                  device_profile.OFF, False]},
                'bitstream': {'type': 'string'},
                'function': {'type': 'string'},
                'any_of': {'type': 'array', 'minItems': 2,
                           'maxItems': device_profile.MAX_ALTERNATIVES,
                           'items': {'type': 'array',
                                     'items': {'type': 'string'}}},
            },
        }},
    },
}

CYBORGS = {
    'type': 'object',
    'required': ['name', 'groups'],
    'properties': {
        'name': _NAME,
        'description': {'type': ['string', 'null']},
        **_ALL_GROUPS,
        'groups': {**_GROUPS, 'items': {
            'type': 'object',
            'additionalProperties': False,
            'patternProperties': {
                # Cyborg converts amounts with int(), so it accepts strings.
                # int() accepts at most 4300 digits.
                '^resources:': {
                    'type': ['integer', 'string'], 'minimum': 1,
                    'maximum': device_profile.MAX_AMOUNT,
                    'pattern': r'^\s*0{0,99}([1-9][0-9]{0,3})\s*\Z'},
                '^trait:': _TRAIT,
                '^accel:': {'type': ['string', 'integer', 'null']},
            },
        }},
    },
}
