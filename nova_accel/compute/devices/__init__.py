# SPDX-License-Identifier: Apache-2.0
"""Operations on devices: prepare, release, reset."""
