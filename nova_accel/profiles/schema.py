# SPDX-License-Identifier: Apache-2.0
"""The shape of a profile document, as JSON Schema (draft 2020-12).

Two schemas, because Cyborg's API lets through top-level keys that it does not
know (what it gives has ``links`` and dates), and ours must not: there an
unknown key is a misspelt one.
"""

from nova_accel.core.request import affinity
from nova_accel.core.request import device_profile

_NAME = {'type': 'string', 'pattern': r'^[A-Za-z0-9_-]{1,255}\Z'}
_WISH = {'enum': [device_profile.REQUIRED, device_profile.FORBIDDEN]}
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
                   # The guest and the network beside them.
                   'maxItems': device_profile.MAX_GROUPS + 2,
                   'items': {'type': ['string', 'integer']}},
        'each': {'type': 'boolean'},
        'policy': {'enum': [device_profile.REQUIRED,
                            device_profile.PREFERRED]},
        'weight': {'type': 'integer', 'minimum': 1,
                   'maximum': affinity.MAX_WEIGHT},
    },
}}
# What is said of the groups together, however each of them is written.
_TOGETHER = {'group_policy': {'enum': ['none', device_profile.ISOLATE]},
             'affinity': _AFFINITY}

OURS = {
    'type': 'object',
    'required': ['name', 'groups'],
    'additionalProperties': False,
    'properties': {
        'name': _NAME,
        'description': {'type': 'string'},
        **_TOGETHER,
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
                'traits': {'type': 'object', 'additionalProperties': _WISH},
                'count': {'type': 'integer', 'minimum': 1,
                          'maximum': device_profile.MAX_GROUPS},
                # To YAML 1.1, a bare off is false.
                'numa': {'enum': [device_profile.REQUIRED,
                                  device_profile.PREFERRED,
                                  device_profile.OFF, False]},
                'bitstream': {'type': 'string'},
                'function': {'type': 'string'},
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
        **_TOGETHER,
        'groups': {**_GROUPS, 'items': {
            'type': 'object',
            'additionalProperties': False,
            'patternProperties': {
                # Cyborg takes whatever Python's int() does, so also text;
                # int() takes no more than 4300 digits.
                '^resources:': {
                    'type': ['integer', 'string'], 'minimum': 1,
                    'maximum': device_profile.MAX_AMOUNT,
                    'pattern': r'^\s*0{0,99}([1-9][0-9]{0,3})\s*\Z'},
                '^trait:': _WISH,
                '^accel:': {'type': ['string', 'integer', 'null']},
            },
        }},
    },
}
