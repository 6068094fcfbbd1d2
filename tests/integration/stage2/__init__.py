# SPDX-License-Identifier: Apache-2.0
"""Stage 2: a compute node in a nested machine with emulated devices."""
