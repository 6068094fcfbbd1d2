# SPDX-License-Identifier: Apache-2.0
"""The tests that Cyborg has for itself, with our devices in their place."""
