# SPDX-License-Identifier: Apache-2.0
"""What the tenant asks for: profiles, flavors, and rules of affinity."""
