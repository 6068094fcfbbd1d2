# SPDX-License-Identifier: Apache-2.0
"""Who gets which devices, and whether who has them should."""
