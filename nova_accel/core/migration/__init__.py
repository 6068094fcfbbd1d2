# SPDX-License-Identifier: Apache-2.0
"""The way from Cyborg, or from Nova's ``[pci] alias``, to nova_accel."""
