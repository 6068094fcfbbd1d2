# SPDX-License-Identifier: Apache-2.0
"""Short storms. Run long storms with ``python -m tests.storm``."""

from tests.functional import cloud
from tests.storm import cleaning
from tests.storm import entries
from tests.storm import storm


class StormTest(storm.Storm):

    DEVICE_SPEC = (cloud.migratable(cloud.FOUR_SPEC),)

    def test_short_storm(self):
        self.blow(seed=1, steps=12, log=storm.Log())


class EntryStormTest(entries.EntryStorm):

    def test_short_storm(self):
        self.blow(seed=1, steps=6, log=storm.Log())


class CleaningStormTest(cleaning.CleaningStorm):

    def test_short_storm(self):
        self.blow(seed=1, steps=6, log=storm.Log())
