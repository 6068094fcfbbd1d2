# SPDX-License-Identifier: Apache-2.0
"""Cyborg's own Tempest tests, on devices of nova_accel."""
