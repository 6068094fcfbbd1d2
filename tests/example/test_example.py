# SPDX-License-Identifier: Apache-2.0
"""The example's own tests: the contract's, on a machine of its own."""

import contextlib
import pathlib
import unittest

import nova_accel_example

from nova_accel import testing


class ExampleTest(testing.KindTests, unittest.TestCase):
    kind = 'example'
    tree = pathlib.Path(__file__).parent / 'machine.json'
    entries = ({'kind': 'example', 'vendor_id': '1234'},)

    @contextlib.contextmanager
    def kernel(self, sysfs):
        nova_accel_example.context.set_client_mode(False)
        try:
            yield
        finally:
            nova_accel_example.context.set_client_mode(True)
