# SPDX-License-Identifier: Apache-2.0
"""Every operation on a server, with everything that a server can have.

The table of doc/source/operations.rst; test_table.py holds the two together.
"""
