# SPDX-License-Identifier: Apache-2.0
"""Device profiles in files: their schema, parser and store."""
