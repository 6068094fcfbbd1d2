# SPDX-License-Identifier: Apache-2.0
"""Regions that a JSON file declares, for devices that sysfs does not describe.

This is the reference kind: it is an Enumerator and nothing else. The file::

    {"regions": [{"name": "left", "functions": ["0000:81:00.0",
                                                "0000:81:00.1"],
                  "resource_class": "CUSTOM_NPU", "traits": ["CUSTOM_LEFT"],
                  "together": false, "limit": 1, "broken": ""}]}
"""

import collections.abc
import json
import os
import typing

import jsonschema

from nova_accel import safe_yaml
from nova_accel.core import errors
from nova_accel.core import kind
from nova_accel.core import model
from nova_accel.core import naming
from nova_accel.host import tree as trees

FILE = 'regions_file'

#: Largest accepted file, in bytes.
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


class _Region(typing.TypedDict):
    """A region of the file."""

    name: str
    functions: list[str]
    resource_class: typing.NotRequired[str]
    traits: typing.NotRequired[list[str]]
    together: typing.NotRequired[bool]
    limit: typing.NotRequired[float]
    broken: typing.NotRequired[str]


@typing.final
class Declared(kind.Enumerator):
    """Enumerate the functions that a file puts into Regions."""

    def __init__(self, tree: trees.Tree):
        # The operator writes the file; it is not part of the tree.
        pass

    def pools(self, function: model.Function, entry: kind.Entry,
              machine: kind.Machine) -> collections.abc.Iterator[kind.Pool]:
        path: str = entry.setting(FILE)
        here = [region for region in _load(path)
                if str(function.address) in region['functions']]
        if not here:
            raise kind.Refused(f'{path} lists it in no region',
                               'add it to a region, or remove it from the '
                               'entry')
        if len(here) > 1:
            raise kind.Refused(
                f'{path} lists it in several regions: '
                + ', '.join(region['name'] for region in here),
                'keep it in one of them')
        [region] = here
        if region.get('broken'):
            raise kind.Refused(f'{path} marks region {region["name"]} as '
                               'broken: ' + errors.quote(region['broken']))
        yield _pool(region, path, machine)


def _load(path: str) -> list[_Region]:
    try:
        document = json.loads(safe_yaml.read(path, MAX_SIZE))
        jsonschema.validate(document, _SCHEMA)
    except (OSError, ValueError, RecursionError,
            jsonschema.ValidationError) as error:
        why = (f'{error.json_path}: {error.message}'
               if isinstance(error, jsonschema.ValidationError) else error)
        raise kind.Refused(f'{path} cannot be used: '
                           + errors.quote(str(why)),
                           'correct the file that the entry names') from None
    regions: list[_Region] = document['regions']
    for region in regions:
        region['functions'] = list(map(_normal, region['functions']))
    return regions


def _normal(text: str) -> str:
    """Return an address as sysfs writes it; other texts unchanged."""
    try:
        return str(model.PciAddress.parse(text))
    except ValueError:
        return text


def _pool(region: _Region, path: str, machine: kind.Machine) -> kind.Pool:
    try:
        functions = _read_functions(region['functions'])
        resource_class = _read_resource_class(
            region.get('resource_class', 'x'))
        traits = _read_traits(region.get('traits', ()))
    except ValueError as error:
        raise kind.Refused(f'{path}, region {region["name"]}: '
                           + errors.quote(str(error)),
                           'correct the file that the entry names') from None
    present = [address for address in functions
               if address in machine.functions]
    if region.get('together') and present != functions:
        raise kind.Refused(f'{path} groups it with functions that this host '
                           'does not have')
    units = ((tuple(present),) if region.get('together')
             else tuple((address,) for address in present))
    limit = region.get('limit')
    return kind.Pool(
        units, region['name'], traits,
        resource_class if 'resource_class' in region else '',
        # JSON Schema accepts 2.0 as an integer.
        None if limit is None else int(limit))


def _read_functions(texts: list[str]) -> list[model.PciAddress]:
    functions = [model.PciAddress.parse(text) for text in texts]
    if len(set(functions)) < len(functions):
        raise ValueError('has a function twice')
    return functions


def _read_resource_class(text: str) -> str:
    resource_class = naming.normalise_resource_class(text)
    if not naming.is_resource_class(resource_class):
        raise ValueError(f'not a resource class: {resource_class}')
    return resource_class


def _read_traits(texts: collections.abc.Iterable[str]) -> frozenset[str]:
    traits = frozenset(map(naming.normalise_trait, texts))
    if not all(map(naming.is_trait, traits)):
        raise ValueError('a trait has a name that is too long')
    return traits


def _read_file(value: object) -> str:
    if not isinstance(value, str) or not os.path.isabs(value) or (
            '\0' in value):
        raise ValueError('is not the absolute path of a file')
    return value


KIND = kind.Kind(open=Declared, keys={FILE: _read_file}, naming=(FILE,))
