# SPDX-License-Identifier: Apache-2.0
"""Profiles of hypothesis. The default has no deadline and fixed examples.

``pytest --hypothesis-profile=long`` tries many more, random examples.
"""

import hypothesis

hypothesis.settings.register_profile(
    'unit', deadline=None, derandomize=True, database=None)
hypothesis.settings.register_profile(
    'long', deadline=None, max_examples=20_000, database=None)
hypothesis.settings.load_profile('unit')
