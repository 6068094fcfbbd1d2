# SPDX-License-Identifier: Apache-2.0
"""Commands in options: lists of words with placeholders."""

import collections.abc
import re


def read(value: object, placeholders: collections.abc.Collection[str],
         ) -> tuple[str, ...]:
    """Return the words of a command.

    :param placeholders: those that its words may have, such as ``{address}``
    :raises ValueError: if it is no command; the text follows its name
    """
    if not isinstance(value, list) or not value or not all(
            isinstance(word, str) and word and '\0' not in word
            for word in value):
        raise ValueError('is not a list of words')
    if not value[0].startswith('/'):
        raise ValueError('does not begin with the absolute path of a command')
    unknown = [name for name in used(value) if name not in placeholders]
    if unknown:
        raise ValueError(f'has {unknown[0]}; it may have '
                         f'{", ".join(placeholders) or "none"}')
    return tuple(value)


def used(words: collections.abc.Sequence[str]) -> list[str]:
    """Return the placeholders of a command, of which the path has none."""
    return re.findall(r'\{\w*\}', ' '.join(words[1:]))


def fill(words: collections.abc.Sequence[str],
         values: collections.abc.Mapping[str, str]) -> list[str]:
    """Return a command with values for its placeholders."""
    pattern = '|'.join(map(re.escape, values))
    return [words[0], *(re.sub(pattern, lambda match: values[match[0]], word)
                        for word in words[1:])]
