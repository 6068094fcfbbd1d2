# SPDX-License-Identifier: Apache-2.0
"""Read ``device_spec``, and decide which devices a host offers."""
