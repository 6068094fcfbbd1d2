# SPDX-License-Identifier: Apache-2.0
"""A short run of the fuzz harnesses that need Nova."""

import pytest

from tests import fuzz
from tests.fuzz import campaign

_INPUTS = 1000


@pytest.mark.parametrize('name', sorted({*fuzz.HARNESSES}
                                        - {*fuzz.WITHOUT_NOVA}))
def test_code_keeps_the_bounds(name):
    result = campaign.fuzz(name, inputs=_INPUTS)
    assert [failure.why for failure in result.failures.values()] == []
    assert result.counts.inputs == _INPUTS
    assert result.counts.accepted > _INPUTS / 100
