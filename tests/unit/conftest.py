# SPDX-License-Identifier: Apache-2.0
from tests import hypothesis_profiles  # noqa: F401
