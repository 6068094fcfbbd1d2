# SPDX-License-Identifier: Apache-2.0
"""Which free units serve the groups of a request, by the rules: the search."""
