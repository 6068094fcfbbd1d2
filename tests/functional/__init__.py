# SPDX-License-Identifier: Apache-2.0
"""Functional tests: Nova's own harness, with us in it."""

# Before anything else is imported: what oslo.db keeps for each thread has to
# be for each green one.
from nova import monkey_patch ; monkey_patch.patch()  # noqa: E702 I001

import logging  # noqa: E402

# Says at the end of each test, past all capturing, that it was the end.
logging.getLogger('nova.thread_pool_factory').disabled = True
