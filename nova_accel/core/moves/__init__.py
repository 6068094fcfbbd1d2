# SPDX-License-Identifier: Apache-2.0
"""Which servers have to move, and in which order, to make room on hosts."""
