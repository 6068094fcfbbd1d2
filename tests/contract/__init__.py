# SPDX-License-Identifier: Apache-2.0
"""What the code takes for granted of Nova."""

# Some use the harness of the functional tests, which says first of all whether
# threads are native.
import tests.functional  # noqa: F401
