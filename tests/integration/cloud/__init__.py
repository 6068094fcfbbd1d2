# SPDX-License-Identifier: Apache-2.0
"""An OpenStack cloud: control plane and a compute node, on loopback."""
