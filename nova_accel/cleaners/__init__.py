# SPDX-License-Identifier: Apache-2.0
"""Ready cleaners: programs for the option ``cleaner``.

Root runs them, without Nova and oslo. They print a few short lines, and end
with 1 if a step fails.
"""
