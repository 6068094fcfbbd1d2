# SPDX-License-Identifier: Apache-2.0
"""Nova's tests of its libvirt driver, run with nova_accel's driver, too."""
