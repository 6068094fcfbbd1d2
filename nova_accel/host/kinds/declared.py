# SPDX-License-Identifier: Apache-2.0
"""Regions that a file declares: for what no kernel interface tells.

The reference kind: an Enumerator, and nothing else. The file is JSON::

    {"regions": [{"name": "left", "functions": ["0000:81:00.0",
                                                "0000:81:00.1"],
                  "resource_class": "CUSTOM_NPU", "traits": ["CUSTOM_LEFT"],
                  "together": false, "limit": 1, "broken": ""}]}
"""

import collections.abc
import json
import os

import jsonschema

from nova_accel.core import errors
from nova_accel.core import kind
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.host import tree as trees

FILE = 'regions_file'

#: Bytes that are read of a file.
MAX_SIZE = 1 << 20

_NAMES = {'type': 'array', 'items': {'type': 'string'}}
_SCHEMA = {
    'type': 'object', 'required': ['regions'], 'additionalProperties': False,
    'properties': {'regions': {'type': 'array', 'items': {
        'type': 'object', 'required': ['name', 'functions'],
        'additionalProperties': False,
        'properties': {
            'name': {'type': 'string', 'pattern': r'^[A-Za-z0-9_.-]{1,64}\Z'},
            'functions': {**_NAMES, 'minItems': 1, 'uniqueItems': True},
            'resource_class': {'type': 'string', 'minLength': 1},
            'traits': _NAMES,
            'together': {'type': 'boolean'},
            'limit': {'type': 'integer', 'minimum': 1},
            'broken': {'type': 'string'}}}}}}


class Declared:
    """Enumerator of the functions that a file puts into Regions."""

    def __init__(self, tree: trees.Tree):
        # The file is the operator's, and no part of the machine's tree.
        pass

    def pools(self, function: model.Function, entry: kind.Entry,
              machine: kind.Machine) -> collections.abc.Iterator[kind.Pool]:
        path = entry.setting(FILE)
        here = [region for region in _load(path)
                if str(function.address) in region['functions']]
        if not here:
            raise kind.Refused(f'{path} has it in no region',
                               'put it into one, or take it out of the entry')
        if len(here) > 1:
            raise kind.Refused(
                f'{path} has it in several regions: '
                + ', '.join(region['name'] for region in here),
                'leave it in one of them')
        [region] = here
        if region.get('broken'):
            raise kind.Refused(f'{path} calls region {region["name"]} broken: '
                               + errors.quote(region['broken']))
        yield _pool(region, path, machine)


def _load(path: str) -> list[dict]:
    try:
        with open(path, 'rb') as file:
            document = json.loads(file.read(MAX_SIZE + 1)[:MAX_SIZE])
        jsonschema.validate(document, _SCHEMA)
    except (OSError, ValueError, RecursionError,
            jsonschema.ValidationError) as error:
        why = (f'{error.json_path}: {error.message}'
               if isinstance(error, jsonschema.ValidationError) else error)
        raise kind.Refused(f'{path} cannot be used: '
                           + errors.quote(str(why)),
                           'mend the file that the entry names') from None
    return [{**region, 'functions': list(map(_normal, region['functions']))}
            for region in document['regions']]


def _normal(text: str) -> str:
    """An address as sysfs writes it; what is none, as it is."""
    try:
        return str(model.PciAddress.parse(text))
    except ValueError:
        return text


def _pool(region: dict, path: str, machine: kind.Machine) -> kind.Pool:
    try:
        functions = [model.PciAddress.parse(text)
                     for text in region['functions']]
        if len(set(functions)) < len(functions):
            raise ValueError('has a function twice')
        resource_class = naming.normalise_resource_class(
            region.get('resource_class', 'x'))
        if not naming.is_resource_class(resource_class):
            raise ValueError(f'not a resource class: {resource_class}')
        traits = frozenset(map(naming.normalise_trait,
                               region.get('traits', ())))
        if not all(map(naming.is_trait, traits)):
            raise ValueError('a trait has a name that is too long')
    except ValueError as error:
        raise kind.Refused(f'{path}, region {region["name"]}: '
                           + errors.quote(str(error)),
                           'mend the file that the entry names') from None
    there = [address for address in functions if address in machine.functions]
    if region.get('together') and there != functions:
        raise kind.Refused(f'{path} has it together with functions that are '
                           'not there')
    units = ((tuple(there),) if region.get('together')
             else tuple((address,) for address in there))
    limit = region.get('limit')
    return kind.Pool(
        units, region['name'], traits,
        resource_class if 'resource_class' in region else '',
        # To JSON Schema 2.0 is an integer.
        None if limit is None else int(limit))


def _read_file(value: object) -> str:
    if not isinstance(value, str) or not os.path.isabs(value) or (
            '\0' in value):
        raise ValueError('is not the absolute path of a file')
    return value


KIND = kind.Kind(open=Declared, keys={FILE: _read_file})
