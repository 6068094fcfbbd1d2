# SPDX-License-Identifier: Apache-2.0
"""Nova's own tests of its libvirt driver, with its driver and with ours."""
