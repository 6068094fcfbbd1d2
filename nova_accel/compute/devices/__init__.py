# SPDX-License-Identifier: Apache-2.0
"""What is done to devices: made ready, taken back, reset."""
