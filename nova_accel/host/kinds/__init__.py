# SPDX-License-Identifier: Apache-2.0
"""The kinds that nova_accel includes (their contract: core.kind)."""
