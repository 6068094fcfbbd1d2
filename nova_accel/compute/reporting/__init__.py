# SPDX-License-Identifier: Apache-2.0
"""What nova-compute reports: providers to Placement, findings to the log."""
