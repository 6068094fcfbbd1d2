# SPDX-License-Identifier: Apache-2.0
"""Assign devices to servers, and check what servers hold."""
