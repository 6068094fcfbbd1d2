# SPDX-License-Identifier: Apache-2.0
"""The kinds that come with nova_accel (the contract: core.kind)."""
