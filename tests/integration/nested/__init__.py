# SPDX-License-Identifier: Apache-2.0
"""Helpers of stages 2 and 3 for servers on nested machines."""
