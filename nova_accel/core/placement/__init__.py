# SPDX-License-Identifier: Apache-2.0
"""What Placement holds, and what the scheduler hears of it."""
