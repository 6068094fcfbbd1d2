# SPDX-License-Identifier: Apache-2.0
"""The data for Placement and for the scheduler."""
