# SPDX-License-Identifier: Apache-2.0
"""Flavors of servers that ask for old resource classes.

A server keeps its flavor, and Nova keeps its request specification. Both name
the classes that there were when the server was created
(:mod:`nova_accel.core.request.moved_classes`).
"""

import collections.abc
import functools

import nova.conf
from oslo_log import log as logging

from nova_accel.core import errors
from nova_accel.core.request import moved_classes

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)


def moves() -> moved_classes.Moves:
    """Return the moves of the option; log once what is wrong with others."""
    try:
        return _parse(tuple(CONF.nova_accel.moved_classes.items()))
    except ValueError as error:
        # oslo.config cannot read it; no request may fail for this.
        _log_once(f'{moved_classes.OPTION} is ignored, and servers keep their '
                  f'resource classes: {error}. Correct it')
        return {}


def extra_specs(flavor) -> collections.abc.Mapping[str, str]:
    """Return the extra specs of a flavor with the new classes.

    :param flavor: nova.objects.Flavor
    """
    specs, known = flavor.extra_specs, moves()
    if not moved_classes.is_moved(specs, known):
        return specs
    try:
        return moved_classes.rewrite(specs, known)
    except errors.ProfileError as error:
        _log_once(f'Flavor {errors.plain(flavor.name)} keeps its resource '
                  f'classes: {error}')
        return specs


def current(flavor):
    """Return a flavor, or a copy of it with the new classes.

    :param flavor: nova.objects.Flavor
    """
    specs = extra_specs(flavor)
    if specs is flavor.extra_specs:
        return flavor
    changed = flavor.obj_clone()
    changed.extra_specs = specs
    return changed


@functools.lru_cache(maxsize=8)
def _parse(written) -> moved_classes.Moves:
    found, problems = moved_classes.parse(dict(written))
    for problem in problems:
        LOG.warning('%s', problem)
    return found


@functools.lru_cache(maxsize=256)
def _log_once(text: str) -> None:
    LOG.warning('%s', text)
