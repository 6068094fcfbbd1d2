# SPDX-License-Identifier: Apache-2.0
"""The comparison of two runs of the same tests."""

import collections
import collections.abc
import dataclasses
import importlib.metadata

import prettytable

from tests.suite import side

Outcomes = collections.abc.Mapping[str, side.Outcome]

#: The outcome of a test that one side does not have.
_ABSENT = side.Outcome('absent')

#: Outcomes that Nova expects of its tests. The environment causes the others.
_WELL = {'success', 'skip', 'xfail'}


@dataclasses.dataclass(frozen=True)
class Difference:

    test: str
    stock: side.Outcome
    ours: side.Outcome


class Comparison:

    def __init__(self, stock: Outcomes, ours: Outcomes):
        self._sides = {side.STOCK: stock, side.OURS: ours}
        pairs = [Difference(test, stock.get(test, _ABSENT),
                            ours.get(test, _ABSENT))
                 for test in sorted({*stock, *ours})]
        self.differences = [pair for pair in pairs
                            if pair.stock.status != pair.ours.status]
        self.failures_of_both = [
            pair for pair in pairs if pair.stock.status == pair.ours.status
            and pair.stock.status not in _WELL]

    def facts(self) -> dict:
        return {
            'nova': importlib.metadata.version('nova'),
            'totals': self._totals(),
            'differences': list(map(dataclasses.asdict, self.differences)),
            'failures_of_both': list(map(dataclasses.asdict,
                                         self.failures_of_both))}

    def text(self) -> str:
        totals = self._totals()
        table = prettytable.PrettyTable(('outcome', *totals), align='r')
        for status in sorted(set().union(*totals.values())):
            table.add_row((status, *(totals[name][status]
                                     for name in totals)))
        table.add_row(('tests', *(counts.total()
                                  for counts in totals.values())))
        return '\n'.join([
            f'Nova {importlib.metadata.version("nova")}', str(table),
            *_listed('Different outcomes with nova_accel', self.differences),
            *_listed('Failures with both', self.failures_of_both)])

    def _totals(self) -> dict[str, collections.Counter[str]]:
        return {name: collections.Counter(
            outcome.status for outcome in outcomes.values())
            for name, outcomes in self._sides.items()}


def _listed(title: str, pairs: list[Difference]) -> list[str]:
    lines = [f'{title}: {len(pairs)}']
    for pair in pairs:
        lines.append(f'  {pair.test}')
        lines.extend(f'    {name}: {outcome.status} {outcome.reason}'.rstrip()
                     for name, outcome in ((side.STOCK, pair.stock),
                                           (side.OURS, pair.ours)))
    return lines
