# SPDX-License-Identifier: Apache-2.0
"""Paths of the integration test, all in one folder of the clone."""

import pathlib

ROOT = pathlib.Path(__file__).parents[2]
WORK = ROOT / '.integration'

#: Versions of the packages to install, including Nova's.
CONSTRAINTS = ROOT / 'constraints' / 'nova34.txt'

#: Files that are kept from one run to the next.
CACHE = WORK / 'cache'
VENV = CACHE / 'venv'
BIN = VENV / 'bin'

#: State of a cloud. The next run deletes it.
STATE = WORK / 'state'
RUN = STATE / 'run'

#: The logs of the services. The next run deletes them.
LOG = WORK / 'log'


def make(*directories: pathlib.Path) -> None:
    """Make directories that all users can read, QEMU's for example."""
    for directory in directories:
        directory.mkdir(0o755, parents=True, exist_ok=True)
