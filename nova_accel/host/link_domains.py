# SPDX-License-Identifier: Apache-2.0
"""Read which cards are linked directly: by NVLink, xGMI or UALink.

The kernel shows it for AMD's GPUs with the driver amdgpu. The operator's file,
``[nova_accel] link_domains``, has precedence for the cards that it names, and
the list of a fabric manager for those that it names.

Sources: drivers/gpu/drm/amd/amdgpu/amdgpu_xgmi.c (``xgmi_hive_info``: a
directory in the first GPU of a hive and a link to it in the others);
NVIDIA's Fabric Manager User Guide, "Shared NVSwitch Virtualization Model", for
what a partition is.
"""

import collections
import collections.abc
import dataclasses
import functools
import itertools
import typing

import jsonschema
import yaml

from nova_accel import safe_yaml
from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core.fabric import located
from nova_accel.host import pci
from nova_accel.host import tree as trees

OPTION = '[nova_accel] link_domains'

#: A directory below a function's.
HIVE = 'xgmi_hive_info'
HIVE_ID = 'xgmi_hive_id'

#: Limits of a file: its size in bytes, and the sets in each of its lists.
MAX_BYTES = 512 * 1024
MAX_SETS = 4096

# Errors of a file that are compared, to report the plainest one.
_MAX_ERRORS = 100

_SETS = {'type': 'array', 'maxItems': MAX_SETS, 'items': {
    'type': 'object', 'required': ['devices'], 'additionalProperties': False,
    'properties': {
        'name': {'type': 'string'},
        'devices': {'type': 'array', 'minItems': 1,
                    'items': {'type': 'string'}}}}}
_SCHEMA = jsonschema.Draft202012Validator({
    'type': 'object', 'additionalProperties': False,
    'properties': {'partitions': _SETS, 'islands': _SETS}})


def read(tree: trees.Tree,
         functions: collections.abc.Sequence[model.Function],
         configured: model.Links,
         switched: located.Located = located.NONE,
         ) -> tuple[model.Links, list[str]]:
    """Return the link domains of a machine's cards.

    :param configured: the content of the operator's file
    :param switched: what the fabric manager lists
    :returns: also a message for each card of the file that does not exist,
        and each set of cards on which file and manager do not agree
    """
    problems = list(_problems(functions, frozenset().union(
        *configured.partitions, *configured.islands)))
    configured, disagreements = switched.merge(configured)
    named = frozenset().union(*configured.partitions, *configured.islands)
    islands = (island - named for island in _hives(tree, functions))
    return (dataclasses.replace(configured, islands=(
        *configured.islands, *filter(None, islands))),
            [*problems, *switched.problems, *disagreements])


def load(path: str) -> model.Links:
    """Load a file; parse it again when it has changed.

    :param path: '' for no file
    :raises errors.LinksError: if the file cannot be used
    """
    if not path:
        return model.Links()
    try:
        return _load(path, safe_yaml.signature(path))
    except OSError as error:
        raise errors.LinksError(
            _thing(path), f'cannot be read ({error.strerror})',
            'nova-compute must be able to read the file') from None


def _hives(tree: trees.Tree,
           functions: collections.abc.Iterable[model.Function],
           ) -> list[frozenset[str]]:
    """Return the cards of each hive that amdgpu shows."""
    found = collections.defaultdict(set)
    for function in functions:
        if function.driver == 'amdgpu':
            place = trees.follow(
                tree, f'{pci.path(tree, function.address)}/{HIVE}')
            hive = (tree.text(f'{place}/{HIVE_ID}') or '').strip()
            # The driver uses 0 for "no hive".
            if hive not in ('', '0'):
                found[hive].add(str(function.physfn or function.address))
    return [frozenset(cards) for cards in found.values()]


def _problems(functions: collections.abc.Iterable[model.Function],
              named: collections.abc.Iterable[str],
              ) -> collections.abc.Iterator[str]:
    by_address = {str(function.address): function for function in functions}
    for address in sorted(named):
        if address not in by_address:
            yield (f'{OPTION}: {address} does not exist on this host; '
                   'partitions that contain it are not offered')
        elif by_address[address].physfn:
            yield (f'{OPTION}: {address} is a virtual function; name its '
                   f'card, {by_address[address].physfn}')


@functools.lru_cache(maxsize=4)
def _load(path: str, signature: safe_yaml.Signature) -> model.Links:
    document = _document(path)
    error = jsonschema.exceptions.best_match(itertools.islice(
        _SCHEMA.iter_errors(document), _MAX_ERRORS))
    if error is not None:
        raise errors.LinksError(_thing(path, *error.path), _why(error),
                                _remedy(error))
    return model.Links(_sets(path, document, 'partitions'),
                       _sets(path, document, 'islands'))


def _document(path: str) -> typing.Any:
    try:
        text = safe_yaml.read(path, MAX_BYTES)
    except ValueError as error:
        raise errors.LinksError(_thing(path), str(error)) from None
    try:
        loaded = safe_yaml.load_yaml(text, as_texts=True)
        if len(loaded) != 1:
            # A file that is just being written has none.
            raise ValueError(f'it has {len(loaded)} documents, not one')
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        raise errors.LinksError(_thing(path), 'cannot be understood '
                                f'({safe_yaml.why(error)})') from None
    return loaded[0]


def _sets(path: str, document: dict[str, typing.Any], key: str,
          ) -> tuple[frozenset[str], ...]:
    found = []
    for number, item in enumerate(document.get(key, ())):
        addresses = [_address(text, _thing(path, key, number))
                     for text in item['devices']]
        [(most, times)] = collections.Counter(addresses).most_common(1)
        if times > 1:
            raise errors.LinksError(_thing(path, key, number),
                                    f'has {most} twice')
        found.append(frozenset(addresses))
    return tuple(dict.fromkeys(found))


def _address(text: str, thing: str) -> str:
    """Return an address as sysfs writes it.

    nvidia-smi writes the domain with more digits.
    """
    try:
        return str(model.PciAddress.parse(text))
    except ValueError:
        raise errors.LinksError(
            thing, f'{errors.quote(text)} is not a PCI address',
            'write it as in 0000:81:00.0') from None


def _thing(path: str, *where: str | int) -> str:
    """Return ``[nova_accel] link_domains, FILE, partitions #3``."""
    parts = [OPTION, errors.path(path)]
    for part in where:
        if isinstance(part, int):
            parts[-1] += f' #{part + 1}'
        else:
            parts.append(errors.plain(part))
    return ', '.join(parts)


def _why(error: jsonschema.ValidationError) -> str:
    """Describe an error of jsonschema; its own text repeats the document."""
    instance: typing.Any = error.instance
    match error.validator:
        case 'required':
            return 'has no devices'
        case 'additionalProperties':
            unknown = [key for key in instance if key not in _known(error)]
            return f'does not know the key {errors.quote(unknown[0])}'
        case 'minItems':
            return 'is empty'
        case 'maxItems':
            return f'has more than {MAX_SETS} sets'
    kinds = {'object': 'keys and values', 'array': 'a list',
             'string': 'a text'}
    return (f'{errors.quote(instance)} is not '
            f'{kinds[str(error.validator_value)]}')


def _remedy(error: jsonschema.ValidationError) -> str:
    if error.validator == 'additionalProperties':
        return f'known keys: {", ".join(_known(error))}'
    return ''


def _known(error: jsonschema.ValidationError) -> list[str]:
    """Return the keys that an object may have."""
    schema: typing.Any = error.schema
    return list(schema['properties'])
