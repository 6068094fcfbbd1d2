# SPDX-License-Identifier: Apache-2.0
"""Costs of a device of Cyborg and of nova_accel over a plain server.

``measure`` needs a cloud. The other functions evaluate its figures and use
only the standard library.
"""

from collections.abc import Callable
from collections.abc import Mapping
import statistics

from tests.bench import report as report_
from tests.integration.versus import access
from tests.integration.versus import figures as figures_
from tests.integration.versus import paired

NAME = 'cyborg'
COMMAND = 'python -m tests.integration bench'

PLAIN, CYBORG, OURS = WAYS = ('plain', 'cyborg', 'ours')

_TITLES = {PLAIN: 'No accelerator', CYBORG: 'Cyborg', OURS: 'nova_accel'}

#: The share of Cyborg's added time that nova_accel may add.
LIMIT = 0.1

#: Requests of which nova_accel may have more than a plain server.
PER_PROVIDER = access.PER_PROVIDER


def measure(trials, flavors: Mapping[str, str], rounds: int,
            say: Callable[[str], None]) -> dict:
    """Boot and delete a server of each flavor in each round.

    :param trials: a :class:`tests.integration.versus.trial.Trials`
    :param flavors: flavor ids by way
    :param say: takes a line of progress
    """
    from tests.integration.versus import trial
    for way in WAYS:
        # The first trial fetches images and tokens, and is not counted.
        trials.run(flavors[way])
    results = []
    for number, order in enumerate(trial.interleaved(WAYS, rounds)):
        found = {way: trials.run(flavors[way]) for way in order}
        results.append({'order': order, **{way: found[way] for way in WAYS}})
        say(f'{number + 1} of {rounds}: ' + ', '.join(
            f'{way} {found[way]["boot"]["seconds"]:.2f} s' for way in WAYS))
    return {'rounds': results}


def broken(figures: Mapping) -> list[str]:
    """Return a text for each promise that the figures break."""
    said = []
    for step in ('boot', 'delete'):
        ours, plain = (figures_.requests(figures, way, step)
                       for way in (OURS, PLAIN))
        for kind in sorted(set(ours) - {PER_PROVIDER}):
            if ours[kind] > plain.get(kind, 0):
                said.append(
                    f'{step}: {ours[kind]:g} {figures_.label(kind)} where a '
                    f'plain server has {plain.get(kind, 0):g}')
    share, _interval = _share(figures, 'boot')
    if share > LIMIT:
        said.append(f'boot: nova_accel adds {share:.0%} of the time that '
                    f'Cyborg adds, more than {LIMIT:.0%}')
    return said


def report(figures: Mapping) -> report_.Report:
    added = {way: _added(figures, way, 'boot') for way in (CYBORG, OURS)}
    share, (low, high) = _share(figures, 'boot')
    rounds = len(figures['rounds'])
    verdict = broken(figures)
    return report_.Report(
        'Comparison with Cyborg',
        (f'In {rounds} rounds, a boot with a device of nova_accel took '
         f'{_milliseconds(*added[OURS])} more than the boot of a plain server '
         f'just before or after it. A boot with a device of Cyborg took '
         f'{_milliseconds(*added[CYBORG])} more. These are medians of the '
         f'differences in each round; the brackets contain '
         f'{paired.SHARE:.0%} of the medians of bootstrap samples. So '
         f'nova_accel adds {share:.0%} ({low:.0%} to {high:.0%}) of the time '
         'that Cyborg adds.',
         _requests_said(figures),
         _reads_said(figures),
         'The promise is no additional request, except Nova\'s own for each '
         f'provider, and at most {LIMIT:.0%} of the time that Cyborg adds to '
         'a boot. '
         + ('It is kept by these figures.' if not verdict else
            f'It is not kept by these figures: {"; ".join(verdict)}.'),
         'A cloud of separate services with MariaDB, RabbitMQ, libvirt and '
         'QEMU runs Cyborg and nova_accel on one host. Each round boots and '
         'deletes a server of each flavor, in a changing order. The flavors '
         'differ only in the profile. Servers have no network. A boot ends '
         'when nova-compute logs that the server is built, just after it is '
         'ACTIVE. A delete ends when the server is gone, polled every 100 ms. '
         'Requests are matched by the request id that they carry. Requests to '
         'Cyborg and Keystone, and Cyborg\'s events, are matched by time. '
         'Cyborg has its fake driver, which provides no device. nova_accel '
         'has a recorded machine; its hostdevs are not passed to libvirt, '
         'which could not attach them. So neither side includes the work on a '
         'device.'),
        (figures_.medians(figures, _TITLES), _differences(figures)))


def section(result: Mapping) -> str:
    """Return the text that the documentation includes."""
    facts = result['machine']
    return report_.rst(
        NAME, report(result['figures']),
        figures_.measured(facts, f'Cyborg {facts["openstack-cyborg"]}'),
        COMMAND)


def _requests_said(figures) -> str:
    more = {way: _more(figures, way) for way in (CYBORG, OURS)}
    return ' '.join(
        f'{_TITLES[way]} adds to a boot: '
        + (', '.join(f'{figures_.label(kind)} ({count:g})' for kind, count in
                     sorted(more[way].items())) or 'no HTTP request')
        + '.' for way in (CYBORG, OURS))


def _reads_said(figures) -> str:
    """Describe the cost of nova_accel's providers for any server's boot."""
    counts = [figures_.requests(figures, way, 'boot').get(PER_PROVIDER, 0)
              for way in WAYS]
    took = [milliseconds for way in WAYS
            for milliseconds in figures_.reading(figures, way)
            if milliseconds]
    return (
        f'Each boot, with any flavor, has {_range(counts)} requests of Nova '
        'that read the allocations of a provider, including those of '
        'nova_accel. '
        + (f'For those of a boot, Placement takes '
           f'{statistics.median(took):.0f} ms ({min(took)} to {max(took)}). '
           if took else '')
        + 'As all boots have them, the differences do not show them.')


def _range(values) -> str:
    low, high = min(values), max(values)
    return f'{low:g}' if low == high else f'{low:g} to {high:g}'


def _more(figures, way) -> dict[str, float]:
    """Return the additional requests of a boot by kind."""
    plain = figures_.requests(figures, PLAIN, 'boot')
    return {kind: count - plain.get(kind, 0)
            for kind, count in figures_.requests(figures, way, 'boot').items()
            if count > plain.get(kind, 0)}


def _differences(figures) -> report_.Table:
    return report_.Table(
        'Time added to a plain server, ms: the median of the rounds\' '
        'differences',
        ('', _TITLES[CYBORG], _TITLES[OURS], 'Share'),
        tuple((step, *(_milliseconds(*_added(figures, way, step), unit='')
                       for way in (CYBORG, OURS)),
               '{:.2f} ({:.2f} to {:.2f})'.format(
                   (made := _share(figures, step))[0], *made[1]))
              for step in ('boot', 'delete')))


def _added(figures, way, step):
    return paired.added(figures_.column(figures, way, step, 'seconds'),
                        figures_.column(figures, PLAIN, step, 'seconds'))


def _share(figures, step):
    return paired.share(*(figures_.column(figures, way, step, 'seconds')
                          for way in (OURS, CYBORG, PLAIN)))


def _milliseconds(median, interval, unit=' ms') -> str:
    low, high = interval
    return f'{median * 1000:.0f}{unit} ({low * 1000:.0f} to {high * 1000:.0f})'
