# SPDX-License-Identifier: Apache-2.0
"""Find options that do not exist: oslo.config ignores them without a word."""

import collections.abc
import difflib

from nova_accel.core import errors

#: Names of options by section.
Sections = collections.abc.Mapping[str, collections.abc.Collection[str]]

# How alike the name of a section must be to be taken for one of ours: more
# than nova_accel and nova_accel_npu, which may belong to a plugin.
_ALIKE = 0.85


def find(file: str, sections: Sections, known: Sections,
         ) -> collections.abc.Iterator[errors.AccelError]:
    """Yield an error for each option of a file that does not exist.

    A section with a name much like one of ours is taken for it.

    :param file: its name
    :param sections: what the file sets
    :param known: our sections, in lower case, and the options that exist
    """
    for section, names in sections.items():
        options = known.get(section.lower())
        if options is None:
            if near := _nearest(section, known, _ALIKE):
                yield _error(f'[{section}]', 'section', f'[{near}]', file)
            continue
        for name in names:
            if name not in options:
                yield _error(f'[{section}] {name}', 'option',
                             _nearest(name, options), file)


def _nearest(name: str, names: collections.abc.Iterable[str],
             alike: float = 0.6) -> str:
    return next(iter(difflib.get_close_matches(
        name.lower(), names, 1, alike)), '')


def _error(name: str, what: str, near: str, file: str) -> errors.AccelError:
    thing = name if name.isprintable() else errors.quote(name)
    return errors.AccelError(
        f'{thing} in {errors.path(file)}', f'there is no such {what}, and it '
        'is ignored', f'the nearest {what} is {near}' if near else 'remove it')
