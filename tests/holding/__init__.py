# SPDX-License-Identifier: Apache-2.0
"""Does a server keep its devices? Every operation, change and time.

A cell performs an operation on a server, while something changes. All
expected outcomes come from the rule of holding: see :mod:`.rule`.
"""
