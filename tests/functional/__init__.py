# SPDX-License-Identifier: Apache-2.0
"""Functional tests: Nova's own harness, with us in it.

They run in green threads, or in native ones where the environment variable
OS_NOVA_DISABLE_EVENTLET_PATCHING is "true": so Nova 34 runs nova-compute.
"""

import logging

# Before anything else: it may make green what is imported after it.
import nova.tests.functional  # noqa: F401

# Says at the end of each test, past all capturing, that it was the end.
logging.getLogger('nova.thread_pool_factory').disabled = True
