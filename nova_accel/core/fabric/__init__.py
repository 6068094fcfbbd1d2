# SPDX-License-Identifier: Apache-2.0
"""Which cards can a switched fabric join? Partitions, and who manages them."""
