# SPDX-License-Identifier: Apache-2.0
"""Stage 1: a real cloud whose accelerators come from a recorded host."""
