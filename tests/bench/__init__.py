# SPDX-License-Identifier: Apache-2.0
"""The figures that the documentation quotes: ``tox -e bench``."""
