# SPDX-License-Identifier: Apache-2.0
"""Tests of every operation on a server with every kind of device.

They are the cells of the table in doc/source/user/operations.rst.
test_table.py compares the table with the tests.
"""
