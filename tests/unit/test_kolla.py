# SPDX-License-Identifier: Apache-2.0
"""The page on Kolla has the nova.conf of the installation guide."""

import pathlib
import textwrap

from tests.integration.cloud import install_guide
from tests.unit import ini

_PAGE = pathlib.Path(__file__).parents[2] / 'doc/source/install/kolla.rst'


def test_page_has_the_options_of_the_guide():
    blocks = [textwrap.dedent(block)
              for block in _PAGE.read_text().split('::\n\n')]
    # Profiles are in the default directory, which is mounted.
    expected = {each for each in ini.options(install_guide.conf())
                if each[1] != 'profile_dirs'}
    assert expected == {
        each for block in blocks for each in ini.options(
            '\n'.join(line.strip() for line in block.splitlines()))
        if each[0] in ('DEFAULT', 'nova_accel', 'filter_scheduler')
        and each[2]}
