# SPDX-License-Identifier: Apache-2.0
"""Run the contract tests of kinds on the example and its recording."""

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
