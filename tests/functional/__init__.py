# SPDX-License-Identifier: Apache-2.0
"""Functional tests: Nova's own harness, with us in it.

They run in green threads, or in native ones where the environment variable
OS_NOVA_DISABLE_EVENTLET_PATCHING is "true": so Nova 34 runs nova-compute.
"""

# Before anything else is imported: what oslo.db keeps for each thread has to
# be for each green one. Nova 31 does it when this is imported.
from nova import monkey_patch

if hasattr(monkey_patch, 'patch'):
    monkey_patch.patch()

# isort: split
import atexit
import faulthandler
import gc
import logging

# Garbage is looked for less often: an eighth of the time went there.
gc.set_threshold(100_000, 20, 20)

# Says at the end of each test, past all capturing, that it was the end.
logging.getLogger('nova.thread_pool_factory').disabled = True

# A thread that does not end keeps the process from ending: say which.
atexit.register(faulthandler.dump_traceback_later, 120, exit=True)
