# SPDX-License-Identifier: Apache-2.0
"""Cyborg's scenarios of tempest, with devices of nova_accel."""
