# SPDX-License-Identifier: Apache-2.0
"""What is done to a guest: its XML, its sleep, its move to another host."""
