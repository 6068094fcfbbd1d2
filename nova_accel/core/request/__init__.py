# SPDX-License-Identifier: Apache-2.0
"""What a server asks for: device profiles, flavors and affinity rules."""
