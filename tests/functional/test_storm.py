# SPDX-License-Identifier: Apache-2.0
"""A short storm. The long ones: ``python -m tests.storm``."""

from tests.storm import storm


class StormTest(storm.Storm):

    def test_a_short_one(self):
        self.blow(seed=1, steps=25, log=storm.Log())
