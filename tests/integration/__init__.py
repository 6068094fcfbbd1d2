# SPDX-License-Identifier: Apache-2.0
"""Integration test: scenarios in a real OpenStack cloud on one machine."""
