# SPDX-License-Identifier: Apache-2.0
"""What core.guest.bar_window says of firmware, tried with QEMU.

See __main__.
"""
