# SPDX-License-Identifier: Apache-2.0
"""Compare the documented table of operations with the tests."""

from nova import test

from tests.functional import cloud
from tests.functional.matrix import table


class TableTest(test.NoDBTestCase):

    def test_documentation_has_the_rows_of_the_tests(self):
        operations = cloud.ROOT / 'doc/source/user/operations.rst'
        self.assertIn(f'\n\n{table.rows()}\n\n', operations.read_text())
