# SPDX-License-Identifier: Apache-2.0
"""What tempest counts at its end.

Its exit code is 0 as well where it has skipped everything.
"""

import re

_COUNT = re.compile(r'^ - (Passed|Skipped): (\d+)$', re.MULTILINE)


def lacking(said: str) -> str:
    """Why what tempest said is no success; nothing if it is.

    :param said: its output, of which the end counts
    """
    counts = {name: int(number) for name, number in _COUNT.findall(said)}
    if set(counts) != {'Passed', 'Skipped'}:
        return 'tempest did not count what has passed'
    if counts['Skipped']:
        return f'tempest has skipped {counts["Skipped"]}'
    return '' if counts['Passed'] else 'tempest has run nothing'
