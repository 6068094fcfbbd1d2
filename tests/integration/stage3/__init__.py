# SPDX-License-Identifier: Apache-2.0
"""Stage 3: servers move between two nested machines."""
