# SPDX-License-Identifier: Apache-2.0
"""The commands ``nova-accel`` and ``nova-accel-status``."""

import warnings

# oslo.privsep imports eventlet if it is installed. The commands do not use it.
warnings.filterwarnings('ignore', r'\s*Eventlet is deprecated')
