# SPDX-License-Identifier: Apache-2.0
"""Profiles from files: their shape, their reading, their keeping."""
