# SPDX-License-Identifier: Apache-2.0
"""Functional tests: Nova's functional harness with nova_accel.

The tests run in green threads. With the environment variable
OS_NOVA_DISABLE_EVENTLET_PATCHING set to "true" they run in native threads, as
nova-compute of Nova 34 does.
"""

# Patch before any other import, so that the thread-local data of oslo.db
# belongs to green threads. Nova 31 patches when this module is imported.
from nova import monkey_patch

if hasattr(monkey_patch, 'patch'):
    monkey_patch.patch()

# isort: split
import atexit
import faulthandler
import gc
import logging

from oslo_utils import importutils

# Collect garbage less often: it took an eighth of the time.
gc.set_threshold(100_000, 20, 20)

# It logs at the end of each test, and the fixtures do not capture that.
logging.getLogger('nova.thread_pool_factory').disabled = True

# Nova 34: a service can stop in the background after its test, when Nova's
# fixtures no longer replace this function. It stops the pools of all tests.
if pools := importutils.try_import('nova.thread_pool_factory'):
    pools.shutdown_all_executors = lambda: None

# A thread that does not end blocks the exit of the process. Print its stack.
atexit.register(faulthandler.dump_traceback_later, 120, exit=True)
