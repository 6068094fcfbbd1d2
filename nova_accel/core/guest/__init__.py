# SPDX-License-Identifier: Apache-2.0
"""What the guest sees of its devices."""
