# SPDX-License-Identifier: Apache-2.0
"""Why no host would do, in one line for all of a request's hosts."""

import collections

from nova_accel.core.solver import arrange

# Of what is said, at most so much for each rule, and so many rules.
_EXAMPLES, _RULES = 2, 5


class Rejections:
    """What was said of the hosts of one request."""

    def __init__(self) -> None:
        self._passed = 0
        self._hosts: collections.Counter[str] = collections.Counter()
        self._candidates: collections.Counter[str] = collections.Counter()
        self._words: dict[str, dict[str, str]] = collections.defaultdict(dict)

    def add(self, host: str, passed: bool,
            found: list[arrange.Arrangement | None]) -> None:
        """Take down what became of a host's candidates."""
        self._passed += passed
        if passed:
            return
        kinds = set()
        for arranged in found:
            if arranged is not None and arranged.objection:
                kinds.add(arranged.kind)
                self._candidates[arranged.kind] += 1
                self._words[arranged.kind].setdefault(arranged.objection,
                                                      host)
        self._hosts.update(kinds)

    def text(self) -> str:
        """By rule, how many fell and what would have done.

        :returns: '' if a host passed, or there was none
        """
        if self._passed:
            return ''
        return '; '.join(
            f'{kind}: {number} hosts, {self._candidates[kind]} candidates ('
            + ', '.join(f'{host}: {words}' for words, host in
                        list(self._words[kind].items())[:_EXAMPLES]) + ')'
            for kind, number in self._hosts.most_common(_RULES))
