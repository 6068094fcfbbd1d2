# SPDX-License-Identifier: Apache-2.0
"""HTTP requests that an operation caused, from the services' access logs.

Most requests that Nova makes for an operation carry the operation's request
id. Polling by the caller has other ids and does not count. Three kinds of
requests carry no id: Nova's to Cyborg, Cyborg's events to nova-api, and those
to Keystone. They count by time, because the cloud is otherwise idle.

Standard library only.
"""

from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import pathlib
import re

#: A line of an access log.
_LINE = re.compile(
    r'(?P<at>\d+) (?P<method>\S+) (?P<status>\d+) (?P<took>\d+)ms '
    r'(?P<uri>\S+) .*request=(?P<caused_by>\S*)$')

#: A request in the stored figures.
_KEPT = re.compile(
    r'(?P<service>\S+) (?P<method>\S+) (?P<uri>\S+) (?P<status>\d+) '
    r'(?P<took>\d+) ms')

#: Services of which every request counts while an operation runs.
_BY_TIME = ('cyborg-api', 'keystone')

#: Events from Cyborg to nova-api when a binding ends: label and path.
EVENTS = 'events to nova-api'
_EVENTS = '/os-server-external-events'
#: Label of Nova's reads of the allocations of each provider in the host's
#: tree, one after the other.
PER_PROVIDER = 'placement, reads per provider'


@dataclasses.dataclass(frozen=True)
class Request:
    """:param service: the service that got the request
    :param at: its end in milliseconds since 1970
    :param took: its duration in milliseconds
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
    """Lines of access logs from now on.

    :param logs: the files by service; a file may not exist yet
    """

    def __init__(self, logs: Mapping[str, pathlib.Path]):
        self._logs = dict(logs)
        self._begin = {service: path.stat().st_size if path.exists() else 0
                       for service, path in logs.items()}

    def caused_by(self, request_id: str) -> list[Request]:
        """Return the requests that an operation caused, in order of time.

        :param request_id: the id in the header of the operation's response
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
    """Return the requests in lines of an access log.

    :raises ValueError: for a line of another format
    """
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
    """Return the text of a request for the stored figures."""
    return (f'{request.service} {request.method} {request.uri} '
            f'{request.status} {request.took} ms')


def of_kept(text: str) -> Request:
    """Return the request of a text of :func:`kept`, without time and id."""
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
    """Return the label under which a table counts a request."""
    if _is_event(request):
        return EVENTS
    if (request.service == 'placement' and request.method == 'GET'
            and request.uri.split('?')[0].endswith('/allocations')
            and '/resource_providers/' in request.uri):
        return PER_PROVIDER
    return request.service


def _is_event(request: Request) -> bool:
    return request.service == 'nova-api' and _EVENTS in request.uri
