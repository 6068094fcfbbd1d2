# SPDX-License-Identifier: Apache-2.0
"""Benchmarks whose results are in the documentation: ``tox -e bench``."""
