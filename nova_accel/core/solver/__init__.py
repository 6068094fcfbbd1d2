# SPDX-License-Identifier: Apache-2.0
"""Choose the units that serve the groups of a request by its rules."""
