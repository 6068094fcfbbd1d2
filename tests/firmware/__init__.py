# SPDX-License-Identifier: Apache-2.0
"""What core.mmio says of firmware, tried with QEMU; see __main__."""
