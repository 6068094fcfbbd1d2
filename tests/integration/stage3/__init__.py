# SPDX-License-Identifier: Apache-2.0
"""Stage 3: servers that move between two nested machines."""
