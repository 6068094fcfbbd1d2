# SPDX-License-Identifier: Apache-2.0
"""Where things are: all in one folder of the clone."""

import pathlib

ROOT = pathlib.Path(__file__).parents[2]
WORK = ROOT / '.integration'

#: Versions of what is installed, Nova's among them.
CONSTRAINTS = ROOT / 'constraints' / 'nova34.txt'

#: What is kept from one run to the next.
CACHE = WORK / 'cache'
VENV = CACHE / 'venv'
BIN = VENV / 'bin'

#: What a cloud writes, and what the next one begins without.
STATE = WORK / 'state'
RUN = STATE / 'run'

#: What it says, by service. The next one writes it anew.
LOG = WORK / 'log'


def make(*directories: pathlib.Path) -> None:
    """Make directories that anybody, libvirt's guests say, can look into."""
    for directory in directories:
        directory.mkdir(0o755, parents=True, exist_ok=True)
