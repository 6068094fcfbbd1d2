# SPDX-License-Identifier: Apache-2.0
"""The table of operations says what the functional tests show."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent.parent


def test_documentation_has_the_rows_of_the_tests():
    # Nova's harness makes threads green; not those of this process.
    rows = subprocess.run(
        [sys.executable, '-m', 'tests.functional.matrix'], cwd=ROOT,
        capture_output=True, text=True, check=True).stdout
    table = (ROOT / 'doc/source/operations.rst').read_text()
    assert f'\n\n{rows}\n' in table
