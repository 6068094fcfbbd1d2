# SPDX-License-Identifier: Apache-2.0
"""Storms: random operations on servers with devices, chosen by a seed."""
