# SPDX-License-Identifier: Apache-2.0
"""The totals that Tempest prints at its end.

Tempest's exit code is 0 even if it has skipped all tests.
"""

import re

_COUNT = re.compile(r'^ - (Passed|Skipped): (\d+)$', re.MULTILINE)


def lacking(said: str) -> str:
    """Return why Tempest's output shows no success, '' if it does.

    :param said: the output with the totals at its end
    """
    counts = {name: int(number) for name, number in _COUNT.findall(said)}
    if set(counts) != {'Passed', 'Skipped'}:
        return 'tempest did not count what has passed'
    if counts['Skipped']:
        return f'tempest has skipped {counts["Skipped"]}'
    return '' if counts['Passed'] else 'tempest has run nothing'
