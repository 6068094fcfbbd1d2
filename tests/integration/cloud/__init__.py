# SPDX-License-Identifier: Apache-2.0
"""The cloud: OpenStack's control plane and a compute node, on loopback."""
