# SPDX-License-Identifier: Apache-2.0
"""The behaviour of Nova that the code relies on."""

# Some tests use the functional tests' harness. It decides whether threads are
# native, and must be imported before Nova.
import tests.functional  # noqa: F401
