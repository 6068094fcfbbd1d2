# SPDX-License-Identifier: Apache-2.0
"""Let Nova look for hosts several times for one request."""

import collections.abc
import typing

from nova_accel.scheduler import candidates

_Part = typing.TypeVar('_Part')


def fresh(spec_obj, found: collections.abc.Mapping[str, list] | None,
          parts: collections.abc.Iterable[tuple[_Part, bool]],
          ) -> collections.abc.Iterator[_Part]:
    """Yield each part, with the request as it was before the first.

    Nova adds the hosts of servers that it has placed to the server group.

    :param spec_obj: nova.objects.RequestSpec
    :param found: the candidates by provider, None without Placement
    :param parts: each with whether another one follows if Nova finds no host
    """
    group = spec_obj.instance_group
    placed = list(group.hosts) if group else []
    answers = {id(candidate.answer): candidate.answer
               for of_provider in (found or {}).values()
               for candidate in of_provider
               if isinstance(candidate, candidates.Candidate)}.values()
    for part, has_more in parts:
        for answer in answers:
            answer.restart(has_more_hosts=has_more)
        yield part
        if group:
            group.hosts = list(placed)
            group.obj_reset_changes(['hosts'])
