# SPDX-License-Identifier: Apache-2.0
"""Summarize in one line why all hosts of a request were rejected."""

import collections

from nova_accel.core import errors
from nova_accel.core.solver import arrange

# Most examples for each kind of rejection, and most kinds.
_EXAMPLES, _RULES = 2, 5


class Rejections:
    """The rejections of the hosts of one request."""

    def __init__(self) -> None:
        self._passed = 0
        self._hosts: collections.Counter[str] = collections.Counter()
        self._candidates: collections.Counter[str] = collections.Counter()
        self._objections: dict[str, dict[str, str]] = (
            collections.defaultdict(dict))

    def add(self, host: str, passed: bool,
            found: list[arrange.Arrangement | None]) -> None:
        """Add the arrangements of a host's candidates."""
        self._passed += passed
        if passed:
            return
        kinds = set()
        for arranged in found:
            if arranged is not None and arranged.objection:
                kinds.add(arranged.kind)
                self._candidates[arranged.kind] += 1
                self._objections[arranged.kind].setdefault(
                    arranged.objection, host)
        self._hosts.update(kinds)

    def text(self) -> str:
        """Return, for each kind, the number of rejections and examples.

        :returns: '' if a host passed, or no host was added
        """
        if self._passed:
            return ''
        return '; '.join(
            f'{kind}: {errors.count(number, "host")}, '
            f'{errors.count(self._candidates[kind], "candidate")} ('
            + ', '.join(f'{host}: {objection}' for objection, host in
                        list(self._objections[kind].items())[:_EXAMPLES])
            + ')'
            for kind, number in self._hosts.most_common(_RULES))
