# SPDX-License-Identifier: Apache-2.0
"""A storm of operations and kills on two nested compute nodes."""
