# SPDX-License-Identifier: Apache-2.0
"""What the operator offers: ``device_spec``, and what a host makes of it."""
