# SPDX-License-Identifier: Apache-2.0
"""An upper bound for schedulers, even if they know all requests in advance.

A linear program serves a part of each request, and never exceeds the capacity
of the hosts. It considers the number of devices, and that large servers cannot
share a host. A server with x of a host's n devices takes at least f(x/n) of a
host for each dual feasible function f (Fekete and Schepers, 2001).
"""

import collections.abc
import fractions

import numpy as np
from scipy import optimize
from scipy import sparse

#: The functions u(k) that are used; 0 stands for the number of devices.
_FUNCTIONS = 0, 1, 2, 3


def shares(arrivals: collections.abc.Sequence[tuple[float, int, float]],
           hosts: int, devices: int) -> dict[str, float]:
    """Return upper bounds of the shares of requests and of device hours.

    :param arrivals: start, number of devices and end of each request, in
        order of start. Requests before 0 are not counted, but use capacity.
    :param devices: the number of devices of each host
    """
    begins, sizes, ends = map(np.array, zip(*arrivals, strict=True))
    rows = []
    for number, begin in enumerate(begins):
        # Without a departure before the next arrival, the constraint of the
        # next arrival includes this one.
        if number + 1 == len(begins) or (
                (ends[:number + 1] > begin)
                & (ends[:number + 1] <= begins[number + 1])).any():
            rows.append(np.flatnonzero(ends[:number + 1] > begin))
    parts = {size: [float(_part(fractions.Fraction(int(size), devices), k))
                    for k in _FUNCTIONS] for size in set(sizes)}
    constraints = sparse.vstack([
        _matrix(rows, [parts[size][index] for size in sizes])
        for index in range(len(_FUNCTIONS))])
    counted = begins >= 0
    found = {}
    for name, weights in (('requests', np.ones(len(sizes))),
                          ('hours', sizes * (ends - begins))):
        weights = np.where(counted, weights, 0)
        best = optimize.linprog(-weights / weights.sum(), constraints,
                                np.full(constraints.shape[0], hosts),
                                bounds=(0, 1), method='highs')
        assert best.success, best.message
        found[name] = round(-best.fun, 6)
    return found


def _part(part: fractions.Fraction, k: int) -> fractions.Fraction:
    """Return the function u(k) of a part of a host; for 0 the part."""
    if not k or ((k + 1) * part).denominator == 1:
        return part
    return fractions.Fraction(int((k + 1) * part), k)


def _matrix(rows, values) -> sparse.csr_array:
    values = np.array(values)
    return sparse.csr_array((
        np.concatenate([values[row] for row in rows]), np.concatenate(rows),
        np.cumsum([0, *map(len, rows)])), shape=(len(rows), len(values)))
