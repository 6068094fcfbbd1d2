# SPDX-License-Identifier: Apache-2.0
"""Parse the text of a file to Profiles, and report the invalid ones.

A file is YAML or JSON, and has one or several documents. A document is a
profile; a list of profiles; an answer of Cyborg's API,
``{"device_profile": {...}}`` or ``{"device_profiles": [...]}``; or a list of
groups, as Cyborg's command line accepts it, which is named after the file.
"""

import collections.abc
import itertools
import typing

import jsonschema
import yaml

from nova_accel import safe_yaml
from nova_accel.core import errors
from nova_accel.core.request import device_profile
from nova_accel.profiles import schema

#: Largest accepted file, in bytes. A thousand profiles fit.
MAX_BYTES = 512 * 1024
#: Most profiles in a file.
MAX_PROFILES = 4096

# Errors of a profile that are compared, to report the plainest one.
_MAX_ERRORS = 100

# An error of a validator. Its type in jsonschema also has errors of which
# nothing is known.
_Error = typing.Any


def read(text: str, source: str, name: str = '',
         ) -> tuple[list[device_profile.Profile], list[errors.ProfileError]]:
    """Return the valid profiles of a file, and the errors of the others.

    :param source: name of the file, for messages
    :param name: name of the profile if a document is a list of groups
    :raises errors.ProfileError: if the file as a whole cannot be read
    """
    found: list[device_profile.Profile] = []
    problems: list[errors.ProfileError] = []
    documents = list(itertools.islice(_documents(text, source, name),
                                      MAX_PROFILES + 1))
    if len(documents) > MAX_PROFILES:
        raise errors.ProfileError(
            source, f'has more than {MAX_PROFILES} profiles',
            'split it into several files')
    for document in documents:
        try:
            _check_numbers(document, source)
            _check_shape(document, source)
            found.append(device_profile.parse(document, source))
        except errors.ProfileError as error:
            error.profile = _name(document)
            problems.append(error)
    return found, problems


def _name(document: object) -> str | None:
    name = document.get('name') if isinstance(document, dict) else None
    return name if isinstance(name, str) else None


def _documents(text: str, source: str, name: str,
               ) -> collections.abc.Iterator[typing.Any]:
    for loaded in load(text, source):
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


def load(text: str, source: str) -> list[typing.Any]:
    """Return the documents of a file as they are written.

    :param source: as for :func:`read`
    :raises errors.ProfileError: if the file cannot be read
    """
    try:
        loaded = (safe_yaml.load_json(text) if source.endswith('.json')
                  else safe_yaml.load_yaml(text))
        found = [document for document in loaded if document is not None]
        if not found:
            # Also while another program is still writing the file.
            raise ValueError('it is empty')
        return found
    except (ValueError, yaml.YAMLError) as error:
        raise errors.ProfileError(
            source, f'cannot be read ({safe_yaml.why(error)})') from None
    except RecursionError:
        raise errors.ProfileError(source, 'is nested too deep') from None


def _check_numbers(document: object, source: str) -> None:
    """Reject integers with more digits than Python converts to a string.

    YAML reads them if they are hexadecimal, and jsonschema fails on them.
    """
    try:
        repr(document)
    except ValueError:
        raise errors.ProfileError(
            _where(document, source, ()),
            'has a number with too many digits') from None


def _check_shape(document: typing.Any, source: str) -> None:
    groups = document.get('groups') if isinstance(document, dict) else None
    validator = (_CYBORGS if device_profile.is_cyborg_document(groups)
                 else _OURS)
    error = jsonschema.exceptions.best_match(itertools.islice(
        validator.iter_errors(document), _MAX_ERRORS))
    if error is not None:
        raise errors.ProfileError(_where(document, source, error.path),
                                  _why(error), _remedy(error))


def _where(document: object, source: str,
           path: collections.abc.Iterable[str | int]) -> str:
    where = source
    if isinstance(document, dict) and 'name' in document:
        where = f'profile {errors.quote(document["name"])} in {source}'
    keys = list(path)
    if keys[:1] == ['groups'] and len(keys) > 1:
        where += f', group {keys[1]}'
        keys = keys[2:]
    for key in keys:
        where += f', {errors.plain(str(key))}'
    return where


def _why(error: _Error) -> str:
    """Return the reason; jsonschema's messages repeat the whole document."""
    value, limit = errors.quote(error.instance), error.validator_value
    match error.validator:
        case 'required':
            return f'has no {_missing_key(error)}'
        case 'additionalProperties':
            return f'has the unknown key {errors.quote(_unknown_key(error))}'
        case 'type':
            kinds = limit if isinstance(limit, list) else [limit]
            return f'{value} is not of type {" or ".join(kinds)}'
        case 'enum':
            words = [word for word in limit if isinstance(word, str)]
            return f'{value} is not one of {", ".join(words)}'
        case 'minimum' | 'maximum':
            return (f'{value} is not between 1 and '
                    f'{error.schema["maximum"]}')
        case 'minItems' | 'maxItems':
            noun = 'alternative' if error.path[-1] == 'any_of' else 'group'
            return (f'has {errors.count(len(error.instance), noun)}, but must '
                    f'have {error.schema["minItems"]} to '
                    f'{error.schema["maxItems"]}')
        case 'pattern':
            return f'{value} is not {_expected_text(error.path)}'
    return f'{value} is not valid'


def _missing_key(error: _Error) -> str:
    found: str = next(key for key in error.validator_value
                      if key not in error.instance)
    return found


def _unknown_key(error: _Error) -> object:
    known = error.schema.get('properties', ())
    prefixes = tuple(pattern[1:] for pattern
                     in error.schema.get('patternProperties', ()))
    return next(key for key in error.instance
                if key not in known and not str(key).startswith(prefixes))


def _expected_text(path: collections.abc.Sequence[str | int]) -> str:
    """Return what a string at this path of a document must be."""
    if path[-1] != 'name':
        return f'an amount between 1 and {device_profile.MAX_AMOUNT}'
    if path[0] == 'groups':
        return ('a valid group name: use a letter, then up to 63 letters, '
                'digits, hyphens and underscores')
    return ('a valid name: use 1 to 255 letters, digits, hyphens and '
            'underscores')


def _remedy(error: _Error) -> str:
    if (error.validator, error.validator_value) == ('type', 'string') and (
            not isinstance(error.instance, (dict, list, type(None)))):
        # YAML reads 0123 as a number, and 2026-01-01 as a date.
        return 'write it in quotes'
    if 'any_of' in error.path and error.validator == 'type':
        return ('an alternative is a list of required traits, such as '
                '[CUSTOM_A100]; for another resource class or amount, write '
                'another profile')
    if error.validator != 'additionalProperties':
        return ''
    keys = (*error.schema.get('properties', ()), *(
        f'{pattern[1:]}NAME'
        for pattern in error.schema.get('patternProperties', ())))
    return f'known keys: {", ".join(keys)}'


_OURS = jsonschema.Draft202012Validator(schema.OURS)
_CYBORGS = jsonschema.Draft202012Validator(schema.CYBORGS)
