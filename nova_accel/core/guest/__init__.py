# SPDX-License-Identifier: Apache-2.0
"""Devices as the guest sees them."""
