# SPDX-License-Identifier: Apache-2.0
"""Tests of the behaviour of Nova that the code relies on."""

# Some tests use the harness of the functional tests. Its package decides
# whether threads are native, so it must be imported before Nova.
import tests.functional  # noqa: F401
