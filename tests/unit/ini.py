# SPDX-License-Identifier: Apache-2.0
"""DevStack's changes of nova.conf, for tests of the code that makes them."""

import pathlib
import sys


def options(text):
    """Return the options of an ini file: (section, option, value)."""
    section, found = None, []
    for line in text.splitlines():
        if line.startswith('['):
            section = line.strip('[]')
        elif line.strip():
            option, _, value = line.partition(' = ')
            found.append((section, option, value))
    return found


def _text(present):
    return '\n'.join(f'[{section}]\n{option} = {value}'
                     for section, option, value in present)


def change(function, file, section, option, *values):
    """Do what a function of DevStack's inc/ini-config does."""
    path = pathlib.Path(file)
    present = options(path.read_text())
    found = [value for *key, value in present if key == [section, option]]
    if function == 'ini_has_option':
        return not found
    if function == 'iniget':
        print(*found)
        return 0
    if function != 'iniadd':
        present = [each for each in present if each[:2] != (section, option)]
    path.write_text(_text(
        [*present, *((section, option, value) for value in values)]))
    return 0


if __name__ == '__main__':
    sys.exit(change(*sys.argv[1:]))
