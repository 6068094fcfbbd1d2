# SPDX-License-Identifier: Apache-2.0
"""What the scenarios of stages 2 and 3 share: servers in nested machines."""
