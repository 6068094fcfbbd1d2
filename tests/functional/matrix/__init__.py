# SPDX-License-Identifier: Apache-2.0
"""Every operation on a server, with every kind of device.

The table of doc/source/user/operations.rst; test_table.py compares the two.
"""
