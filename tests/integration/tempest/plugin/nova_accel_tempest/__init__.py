# SPDX-License-Identifier: Apache-2.0
"""A Tempest plugin: Cyborg's tests with devices of nova_accel."""
