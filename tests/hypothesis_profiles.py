# SPDX-License-Identifier: Apache-2.0
"""How hypothesis works here: the same each time, however slow the machine.

``pytest --hypothesis-profile=long`` looks further, elsewhere each time.
"""

import hypothesis

hypothesis.settings.register_profile(
    'unit', deadline=None, derandomize=True, database=None)
hypothesis.settings.register_profile(
    'long', deadline=None, max_examples=20_000, database=None)
hypothesis.settings.load_profile('unit')
