# SPDX-License-Identifier: Apache-2.0
"""The project's own integration test: a real cloud, and servers in it."""
