# SPDX-License-Identifier: Apache-2.0
"""Files at the top of the repository link to files that exist."""

import pathlib
import re

import pytest

_ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.parametrize('name', sorted(
    path.name for path in _ROOT.glob('*.rst')))
def test_every_linked_file_exists(name):
    linked = re.findall(r'<([^<>:\s]+)>`_', (_ROOT / name).read_text())
    assert linked
    assert [path for path in linked if not (_ROOT / path).exists()] == []
