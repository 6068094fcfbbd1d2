# SPDX-License-Identifier: Apache-2.0
"""Operations on a guest: its XML, suspend and resume, live migration."""
