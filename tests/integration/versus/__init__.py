# SPDX-License-Identifier: Apache-2.0
"""Beside Cyborg, on the same cloud: what a server with a device costs more."""
