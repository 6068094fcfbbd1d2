# SPDX-License-Identifier: Apache-2.0
"""Stage 1: a real cloud, whose accelerators are those of a recording."""
