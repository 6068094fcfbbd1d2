# SPDX-License-Identifier: Apache-2.0
"""How many more servers the devices of a cloud can serve."""
