# SPDX-License-Identifier: Apache-2.0
"""Say why hosts cannot serve a request, without the name of a host.

The owner of a server may read these texts.
"""

import collections.abc

from nova_accel.core import errors
from nova_accel.core.solver import arrange
from nova_accel.core.solver import explain

# The kinds of objections, the nearest to a host that serves the request last.
# Between the two parts are the titles of rules.
_FAR = 'driver', 'units', 'traits'
_NEAR = 'together', 'limit', 'service'


def clause(found: arrange.Arrangement) -> str:
    """Return what one host lacks: ``at most 2 of 4 free CUSTOM_GPU``."""
    if found.objections:
        return ', and '.join(dict.fromkeys(map(clause, found.objections)))
    lack = found.shortage
    if lack is None:
        return found.objection
    if found.rule is None:
        return f'at most {lack.most} of {lack.asked}'
    one, several = explain.PLACES[found.rule.key]
    text = (f'at most {lack.most} of {lack.asked} on one {one}'
            if found.rule.same else
            f'{lack.asked} on at most {lack.most} of '
            + errors.count(lack.wanted, one, several))
    return text + _conditions(lack, one)


def stranded(found: arrange.Arrangement) -> str:
    """Return why units are free and serve nobody, for several hosts at once.

    :param found: the objection of one of them
    :returns: a text such as ``fewer than 4 free CUSTOM_GPU on one NUMA node``,
        without numbers that differ between hosts
    """
    if found.objections:
        return ', and '.join(dict.fromkeys(map(stranded, found.objections)))
    lack = found.shortage
    if lack is None:
        return found.objection
    if found.rule is None:
        return f'fewer than {lack.asked}'
    one, several = explain.PLACES[found.rule.key]
    return (f'fewer than {lack.asked} on one {one}' if found.rule.same else
            f'{lack.asked} on fewer than {lack.wanted} {several}')


def no_host(objections: collections.abc.Iterable[arrange.Arrangement]) -> str:
    """Return why no host can serve a request.

    The reason is that of the nearest hosts: those that have enough units
    rather than those that do not, for example. So it is for alternatives.

    :param objections: of all hosts
    """
    nearest: dict[tuple[object, ...], arrange.Arrangement] = {}
    each = [one for found in objections
            for one in found.objections or (found,)]
    for found in sorted(each, key=_nearness, reverse=True):
        first = next(iter(nearest.values()), found)
        if _stage(found) < _stage(first):
            break
        nearest.setdefault(_question(found), found)
    if not nearest:
        return 'no host has devices'
    if len(nearest) > 1:
        return 'no host can serve the request: ' + ', or '.join(
            map(clause, nearest.values()))
    [found] = nearest.values()
    return _sentence(found)


def _sentence(found: arrange.Arrangement) -> str:
    lack = found.shortage
    if lack is None:
        return ('no host can serve the request: ' if found.is_final else
                'no host was found: ') + found.objection
    if found.rule is None:
        return f'no host has {lack.asked}; the most is {lack.most}'
    one, several = explain.PLACES[found.rule.key]
    if found.rule.same:
        text = (f'no host has {lack.asked} on one {one}; of the hosts that '
                f'have them, the most on one is {lack.most}')
    else:
        wanted, most = (errors.count(number, one, several)
                        for number in (lack.wanted, lack.most))
        text = (f'no host has {lack.asked} on {wanted}; of the hosts that '
                f'have them, the most is {most}')
    return text + _conditions(lack, one)


def _conditions(lack: explain.Shortage, place: str) -> str:
    return ''.join(f', together with the {name}' for name in lack.near) + (
        f'; the {place} of some devices is unknown' * lack.is_unknown) + (
        '; links of some devices have failed' * lack.have_failed)


def _stage(found: arrange.Arrangement) -> int:
    if found.kind in _FAR:
        return _FAR.index(found.kind)
    return len(_FAR) + (1 + _NEAR.index(found.kind)
                        if found.kind in _NEAR else 0)


def _nearness(found: arrange.Arrangement) -> tuple[int, int]:
    return _stage(found), found.shortage.most if found.shortage else 0


def _question(found: arrange.Arrangement) -> tuple[object, ...]:
    """Return what objections that differ in their numbers only share."""
    return found.rule, found.shortage and found.shortage.asked, (
        None if found.shortage else found.objection)
