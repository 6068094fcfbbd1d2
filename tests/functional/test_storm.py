# SPDX-License-Identifier: Apache-2.0
"""Short storms. The long ones: ``python -m tests.storm``."""

from tests.functional import cloud
from tests.storm import entries
from tests.storm import storm


class StormTest(storm.Storm):

    DEVICE_SPEC = (cloud.migratable(cloud.FOUR_SPEC),)

    def test_a_short_one(self):
        self.blow(seed=1, steps=12, log=storm.Log())


class EntryStormTest(entries.EntryStorm):

    def test_a_short_one(self):
        self.blow(seed=1, steps=6, log=storm.Log())
