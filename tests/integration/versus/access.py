# SPDX-License-Identifier: Apache-2.0
"""Which HTTP requests an operation caused, from the services' access logs.

A request that Nova makes for an operation carries the operation's request id,
as far as the client passes it on; the caller's polling has one of its own and
so does not count. Nova's client of Cyborg passes none on, and Cyborg reports
to nova-api in its own name, as both ask Keystone: those are told by when they
were, the rest of the cloud being idle.

Standard library only.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import pathlib
import re

#: A line as the services write it.
_LINE = re.compile(
    r'(?P<at>\d+) (?P<method>\S+) (?P<status>\d+) (?P<took>\d+)ms '
    r'(?P<uri>\S+) .*request=(?P<caused_by>\S*)$')

#: And as figures keep it.
_KEPT = re.compile(
    r'(?P<service>\S+) (?P<method>\S+) (?P<uri>\S+) (?P<status>\d+) '
    r'(?P<took>\d+) ms')

#: Services of which every request counts while an operation runs.
_BY_TIME = ('cyborg-api', 'keystone')

#: What Cyborg tells nova-api at the end of a binding: the kind, and where.
EVENTS = 'events to nova-api'
_EVENTS = '/os-server-external-events'
#: Nova reads what is allocated of each provider of the host's tree, one after
#: the other.
PER_PROVIDER = 'placement, reads per provider'


@dataclasses.dataclass(frozen=True)
class Request:
    """:param service: who was asked
    :param at: when it was over, milliseconds of the epoch
    :param took: milliseconds
    :param caused_by: the request id that it carries
    """

    service: str
    at: int
    method: str
    status: int
    took: int
    uri: str
    caused_by: str


class Logs:
    """Access logs from now on.

    :param logs: by service; one need not be there yet
    """

    def __init__(self, logs: Mapping[str, pathlib.Path]):
        self._logs = dict(logs)
        self._begin = {service: path.stat().st_size if path.exists() else 0
                       for service, path in logs.items()}

    def caused_by(self, request_id: str) -> list[Request]:
        """The requests since then that an operation caused, as they came.

        :param request_id: the operation's, as its answer's header has it
        """
        return sorted(caused_by(request_id, self._read()),
                      key=lambda request: request.at)

    def _read(self) -> Iterator[Request]:
        for service, path in self._logs.items():
            if path.exists():
                with path.open(errors='replace') as lines:
                    lines.seek(self._begin[service])
                    yield from parse(service, lines)


def parse(service: str, lines: Iterable[str]) -> Iterator[Request]:
    """:raises ValueError: for a line that is not as services write it"""
    for line in lines:
        match = _LINE.match(line.rstrip('\n'))
        if match is None:
            raise ValueError(
                f'the access log of {service} has a line of another format: '
                f'{line.strip()[:200]!r}')
        yield Request(service, int(match['at']), match['method'],
                      int(match['status']), int(match['took']), match['uri'],
                      match['caused_by'])


def kept(request: Request) -> str:
    """A request in the words in which figures keep it."""
    return (f'{request.service} {request.method} {request.uri} '
            f'{request.status} {request.took} ms')


def of_kept(text: str) -> Request:
    """What :func:`kept` was given, but when it was and what caused it."""
    match = _KEPT.fullmatch(text)
    return Request(match['service'], 0, match['method'], int(match['status']),
                   int(match['took']), match['uri'], '')


def caused_by(request_id: str,
              requests: Iterable[Request]) -> Iterator[Request]:
    for request in requests:
        if (request.caused_by == request_id or request.service in _BY_TIME
                or _is_event(request)):
            yield request


def kind(request: Request) -> str:
    """What a request counts as, for a table."""
    if _is_event(request):
        return EVENTS
    if (request.service == 'placement' and request.method == 'GET'
            and request.uri.split('?')[0].endswith('/allocations')
            and '/resource_providers/' in request.uri):
        return PER_PROVIDER
    return request.service


def _is_event(request: Request) -> bool:
    return request.service == 'nova-api' and _EVENTS in request.uri
