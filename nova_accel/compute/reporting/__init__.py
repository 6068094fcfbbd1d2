# SPDX-License-Identifier: Apache-2.0
"""Reports of nova-compute: providers to Placement, findings to the log."""
