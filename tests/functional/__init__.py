# SPDX-License-Identifier: Apache-2.0
"""Functional tests: Nova's own harness, with us in it."""

import logging

# Says at the end of each test, past all capturing, that it was the end.
logging.getLogger('nova.thread_pool_factory').disabled = True
