# SPDX-License-Identifier: Apache-2.0
"""A storm of operations on servers with devices, at random, from a seed."""
