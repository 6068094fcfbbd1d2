# SPDX-License-Identifier: Apache-2.0
"""Mutations: the rule of holding without one of its clauses."""

import contextlib


@contextlib.contextmanager
def applied(name):
    """Drop a clause of the rule inside the context."""
    yield
