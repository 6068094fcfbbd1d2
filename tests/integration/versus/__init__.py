# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of nova_accel against Cyborg and Nova on the same cloud."""
