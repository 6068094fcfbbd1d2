# SPDX-License-Identifier: Apache-2.0
"""Cross-cell resize."""

from nova.policies import base as policies
from nova.policies import servers as server_policies

from tests.functional.matrix import base


class Cells(base.Matrix):
    """Hosts in two cells."""

    NUMBER_OF_CELLS = 2
    CELLS = {'compute1': 'cell1', 'compute2': 'cell2'}

    def setUp(self):
        super().setUp()
        # The default policy allows no user a cross-cell resize.
        self.policy.set_rules({
            server_policies.CROSS_CELL_RESIZE: policies.RULE_ADMIN_API},
            overwrite=False)

    @base.operation('Resize to another cell, confirm or revert')
    def test_resize_to_another_cell(self):
        server = self.server()
        was = self.taken('compute1')
        action = {'resize': {'flavorRef': self.flavors['large']}}
        self.act(server, action, 'VERIFY_RESIZE')
        self.assertHas(server, 'large', 'compute2')
        # Nova undefines the domain on the source, and keeps the allocations.
        self.assertEqual(({}, was[1]), self.taken('compute1'))
        self.assertTaken('compute1')
        self._revert_resize(server)
        self.assertEqual(was, self.taken('compute1'))
        self.assertFree('compute2')
        self.act(server, action, 'VERIFY_RESIZE')
        self._confirm_resize(server, cross_cell=True)
        self.assertHas(server, 'large', 'compute2')
        self.assertFree('compute1')
