# SPDX-License-Identifier: Apache-2.0
"""Costs of a server without a device on a host with devices in Placement.

The devices are reported either by nova_accel or by Nova, with ``[pci]
device_spec`` and ``report_in_placement``. ``measure`` needs a cloud. The other
functions evaluate its figures and use only the standard library.
"""

from collections.abc import Callable
from collections.abc import Mapping
import statistics

from tests.bench import report as report_
from tests.integration.versus import figures as figures_
from tests.integration.versus import paired

NAME = 'plain'
COMMAND = 'python -m tests.integration plain'

NOVA, OURS = WAYS = ('nova', 'ours')

_TITLES = {NOVA: 'Nova', OURS: 'nova_accel'}


def measure(trials, have: Callable[[str], int], flavor: str, rounds: int,
            say: Callable[[str], None]) -> dict:
    """Boot and delete a server on each side in each round.

    The second side of a round is the first of the next one. So the cloud
    changes sides once a round, and each side is first equally often.

    :param trials: a :class:`tests.integration.versus.trial.Trials`
    :param have: switches the cloud to a side; returns the number of resource
        providers of the host
    :param flavor: the flavor's id
    :param say: takes a line of progress
    """
    providers: dict[str, int] = {}
    results = []
    now = None
    for number in range(rounds):
        order = WAYS if number % 2 else WAYS[::-1]
        found = {}
        for way in order:
            if way != now:
                providers[way] = have(way)
                # The first trial fetches images and tokens; do not count it.
                trials.run(flavor)
                now = way
            found[way] = trials.run(flavor)
        results.append({'order': order, **found})
        say(f'{number + 1} of {rounds}: ' + ', '.join(
            f'{way} {found[way]["boot"]["seconds"]:.2f} s' for way in WAYS))
    return {'providers': providers, 'rounds': results}


def broken(figures: Mapping) -> list[str]:
    """Return a text for each promise that the figures break."""
    said = []
    for step in ('boot', 'delete'):
        ours, nova = (sum(figures_.requests(figures, way, step).values())
                      for way in (OURS, NOVA))
        if ours > nova:
            said.append(f'{step}: {ours:g} requests where Nova alone has '
                        f'{nova:g}')
    ratio, _interval = _ratio(figures, 'boot')
    if ratio > 1:
        said.append(f'boot: takes {ratio:.2f} times as long as with Nova '
                    'alone')
    return said


def report(figures: Mapping) -> report_.Report:
    ratio, (low, high) = _ratio(figures, 'boot')
    placement = {way: _placement(figures, way) for way in WAYS}
    verdict = broken(figures)
    return report_.Report(
        'A server without a device, compared with Nova\'s PCI devices',
        (f'In {len(figures["rounds"])} rounds, a boot with nova_accel took '
         f'{ratio:.3f} ({low:.3f} to {high:.3f}) of the time of a boot with '
         'Nova alone in the same round. This is the median of the ratios; the '
         f'brackets contain {paired.SHARE:.0%} of the medians of bootstrap '
         f'samples. A boot has {placement[OURS]:g} requests to Placement with '
         f'nova_accel, and {placement[NOVA]:g} with Nova alone.',
         'Nova causes the difference: at each boot and delete, it reads the '
         'allocations of each provider of the host, for PCI devices that it '
         'reports itself. nova_accel leaves these reads out. Placement takes '
         f'{statistics.median(figures_.reading(figures, NOVA)):.0f} ms for '
         'those of a boot. From the claim to the driver, the time in which '
         'Nova reads, a boot takes '
         f'{_claimed(figures, OURS):.0f} ms with nova_accel and '
         f'{_claimed(figures, NOVA):.0f} ms with Nova alone (medians).',
         'The promise is no more requests and no longer boot than with Nova '
         'alone. '
         + ('It is kept by these figures.' if not verdict else
            f'It is not kept by these figures: {"; ".join(verdict)}.'),
         'The host is a recorded machine with eight GPUs. Nova alone reports '
         'them by ``[pci] device_spec`` and ``report_in_placement``, and has '
         f'{figures["providers"][NOVA]} resource providers for the host; '
         'libvirt lists the recorded devices for it. nova_accel has '
         f'{figures["providers"][OURS]}. Before each change of the side, the '
         'providers of the devices are deleted, and all services of Nova are '
         'restarted with the configuration of the other side. The first boot '
         'after it does not count. The rest is as in *Comparison with '
         'Cyborg*.'),
        (figures_.medians(figures, _TITLES), _ratios(figures)))


def section(result: Mapping) -> str:
    """Return the text that the documentation includes."""
    return report_.rst(NAME, report(result['figures']),
                       figures_.measured(result['machine']), COMMAND)


def _placement(figures, way) -> float:
    return sum(count for kind, count in figures_.requests(
        figures, way, 'boot').items() if kind.startswith('placement'))


def _claimed(figures, way) -> float:
    """Return the median milliseconds from the claim to the driver."""
    return 1000 * statistics.median(
        figures_.column(figures, way, 'boot', 'claimed'))


def _ratio(figures, step):
    return paired.ratio(*(figures_.column(figures, way, step, 'seconds')
                          for way in (OURS, NOVA)))


def _ratios(figures) -> report_.Table:
    rows = []
    for step in ('boot', 'delete'):
        ratio, (low, high) = _ratio(figures, step)
        rows.append((step, f'{ratio:.3f} ({low:.3f} to {high:.3f})'))
    return report_.Table(
        'Time with nova_accel as a share of time with Nova alone: the median '
        'of the rounds\' ratios', ('', 'Ratio'), tuple(rows))
