# SPDX-License-Identifier: Apache-2.0
"""One file's text to the Profiles in it, and what is wrong with the others.

Accepted, in YAML or JSON, one or several documents to a file: a profile; a
list of them; what Cyborg's API gives, ``{"device_profile": {...}}`` and
``{"device_profiles": [...]}``; and the bare list of groups that Cyborg's
command line takes, which gets its name from the file.
"""

import collections.abc
import typing

import jsonschema
import yaml

from nova_accel import safe_yaml
from nova_accel.core import errors
from nova_accel.core.request import device_profile
from nova_accel.profiles import schema

#: Largest file that is read, in bytes. A thousand profiles fit.
MAX_BYTES = 512 * 1024


def read(text: str, source: str, name: str = '',
         ) -> tuple[list[device_profile.Profile], list[errors.ProfileError]]:
    """Every profile of a file that can be used.

    :param source: the file, for messages
    :param name: what a bare list of groups is called
    :raises errors.ProfileError: if the file as a whole cannot be read
    """
    found: list[device_profile.Profile] = []
    problems: list[errors.ProfileError] = []
    for document in _documents(text, source, name):
        try:
            _check_numbers(document, source)
            _check_shape(document, source)
            found.append(device_profile.parse(document, source))
        except errors.ProfileError as error:
            error.profile = _name(document)
            problems.append(error)
    return found, problems


def _name(document) -> str | None:
    name = document.get('name') if isinstance(document, dict) else None
    return name if isinstance(name, str) else None


def _documents(text, source, name) -> collections.abc.Iterator[typing.Any]:
    for loaded in _load(text, source):
        if isinstance(loaded, dict) and 'device_profile' in loaded:
            loaded = loaded['device_profile']
        elif isinstance(loaded, dict) and 'device_profiles' in loaded:
            loaded = loaded['device_profiles']
        if not isinstance(loaded, list):
            yield loaded
        elif loaded and all(_is_bare_group(item) for item in loaded):
            yield {'name': name, 'groups': loaded}
        else:
            yield from loaded


def _is_bare_group(item: object) -> bool:
    return isinstance(item, dict) and 'groups' not in item and (
        'resources' in item or device_profile.is_cyborgs(item))


def _load(text: str, source: str) -> list[typing.Any]:
    try:
        loaded = (safe_yaml.load_json(text) if source.endswith('.json')
                  else safe_yaml.load_yaml(text))
        found = [document for document in loaded if document is not None]
        if not found:
            # As a file is while somebody is about to write it.
            raise ValueError('there is nothing in it')
        return found
    except (ValueError, yaml.YAMLError) as error:
        raise errors.ProfileError(
            source, f'cannot be read ({safe_yaml.why(error)})') from None
    except RecursionError:
        raise errors.ProfileError(source, 'is nested too deep') from None


def _check_numbers(document, source) -> None:
    """Refuse integers of more digits than Python writes.

    YAML reads them where they are hexadecimal; jsonschema repeats them.
    """
    try:
        repr(document)
    except ValueError:
        raise errors.ProfileError(_where(document, source, ()),
                                  'has a number of too many digits') from None


def _check_shape(document, source) -> None:
    groups = document.get('groups') if isinstance(document, dict) else None
    validator = _CYBORGS if device_profile.are_cyborgs(groups) else _OURS
    error = jsonschema.exceptions.best_match(validator.iter_errors(document))
    if error is not None:
        raise errors.ProfileError(_where(document, source, error.path),
                                  _why(error), _remedy(error))


def _where(document, source, path) -> str:
    where = source
    if isinstance(document, dict) and 'name' in document:
        where = f'profile {errors.quote(document["name"])} in {source}'
    path = list(path)
    if path[:1] == ['groups'] and len(path) > 1:
        where += f', group {path[1]}'
        path = path[2:]
    for key in path:
        where += f', {errors.plain(str(key))}'
    return where


def _why(error) -> str:
    """What jsonschema found, in our words: its own repeat the document."""
    value, limit = errors.quote(error.instance), error.validator_value
    match error.validator:
        case 'required':
            missing = [key for key in limit if key not in error.instance]
            return f'has no {missing[0]}'
        case 'additionalProperties':
            known = set(error.schema.get('properties', ()))
            patterns = error.schema.get('patternProperties', ())
            unknown = [key for key in error.instance if key not in known
                       and not any(str(key).startswith(pattern[1:])
                                   for pattern in patterns)]
            return f'does not know the key {errors.quote(unknown[0])}'
        case 'type':
            kinds = limit if isinstance(limit, list) else [limit]
            return f'{value} is not of type {" or ".join(kinds)}'
        case 'enum':
            words = [word for word in limit if isinstance(word, str)]
            return f'{value} is none of {", ".join(words)}'
        case 'minimum' | 'maximum':
            return (f'{value} is not between 1 and '
                    f'{error.schema["maximum"]}')
        case 'minItems' | 'maxItems':
            return (f'has {len(error.instance)} groups, and may have 1 to '
                    f'{error.schema["maxItems"]}')
        case 'pattern' if error.path[0] == 'groups' and (
                error.path[-1] == 'name'):
            return (f"{value} is no group's name: a letter, then up to 63 "
                    'letters, digits, hyphens and underscores')
        case 'pattern' if error.path[-1] == 'name':
            return (f'{value} is no name: 1 to 255 letters, digits, hyphens '
                    'and underscores')
        case 'pattern':
            return (f'{value} is no amount between 1 and '
                    f'{device_profile.MAX_AMOUNT}')
    return f'{value} does not fit'


def _remedy(error) -> str:
    if (error.validator, error.validator_value) == ('type', 'string') and (
            not isinstance(error.instance, (dict, list, type(None)))):
        # To YAML, 0123 is a number, and 2026-01-01 a date.
        return 'write it in quotes'
    if error.validator != 'additionalProperties':
        return ''
    keys = (*error.schema.get('properties', ()), *(
        f'{pattern[1:]}NAME'
        for pattern in error.schema.get('patternProperties', ())))
    return f'known keys: {", ".join(keys)}'


_OURS = jsonschema.Draft202012Validator(schema.OURS)
_CYBORGS = jsonschema.Draft202012Validator(schema.CYBORGS)
