# SPDX-License-Identifier: Apache-2.0
"""Stage 4: the page "Get started", with the devices of its host."""
