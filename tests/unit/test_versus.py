# SPDX-License-Identifier: Apache-2.0
"""The evaluation of the comparison with Cyborg, without measurements."""

import datetime

import pytest

from tests.bench import frame
from tests.bench import report as report_
from tests.integration.versus import access
from tests.integration.versus import comparison
from tests.integration.versus import paired
from tests.integration.versus import plain
from tests.integration.versus import trial

_LINES = [
    '1000 GET 200 5ms /resource_providers/1/allocations ua=nova request=req-1',
    '1002 PUT 204 9ms /allocations/2 ua=nova compute/34 request=req-1',
    '1003 GET 200 3ms /allocation_candidates?limit=9 ua=x request=req-2',
    '1004 GET 200 3ms /resource_providers?in_tree=3 ua=x request=-']
_EVENT = '900 POST 422 7ms /v2.1/os-server-external-events ua=sdk request=-'


def _parsed(service, *lines):
    return list(access.parse(service, lines))


def test_requests_are_matched_by_request_id():
    found = list(access.caused_by('req-1', _parsed('placement', *_LINES)))
    assert [request.at for request in found] == [1000, 1002]
    assert [access.kind(request) for request in found] == [
        'placement, reads per provider', 'placement']


@pytest.mark.parametrize('service, line, kind', [
    ('cyborg-api', '9 PATCH 202 83ms /v2/accelerator_requests request=',
     'cyborg-api'),
    ('keystone', '9 POST 201 20ms /v3/auth/tokens request=-', 'keystone'),
    ('nova-api', _EVENT, 'events to nova-api')])
def test_requests_without_an_id_are_matched_by_time(service, line, kind):
    [found] = access.caused_by('req-1', _parsed(service, line))
    assert access.kind(found) == kind


def test_requests_are_saved_and_loaded():
    [read, *_] = _parsed('placement', *_LINES)
    again = access.of_kept(access.kept(read))
    assert access.kept(again) == access.kept(read)
    assert (again.took, access.kind(again)) == (5, access.kind(read))


def test_polling_is_ignored():
    polls = _parsed('nova-api', '9 GET 200 3ms /v2.1/servers/1 request=-')
    assert not list(access.caused_by('req-1', polls))


def test_logs_are_read_from_their_current_end(tmp_path):
    log = tmp_path / 'placement.access.log'
    log.write_text(_LINES[0] + '\n')
    logs = access.Logs({'placement': log, 'not there': tmp_path / 'none'})
    with log.open('a') as file:
        file.write(_LINES[1] + '\n')
    assert [request.at for request in logs.caused_by('req-1')] == [1002]


def test_build_time_is_read_from_the_log():
    log = ('2026-11-22 10:43:08.725 2 INFO x [None a b] [instance: one] Took '
           '2.34 seconds to spawn the instance on the hypervisor.\n'
           '2026-11-22 10:43:08.837 2 INFO x [None a b] [instance: one] Took '
           '6.80 seconds to build instance.\n')
    assert trial.built(log, 'one') == datetime.datetime(
        2026, 11, 22, 10, 43, 8, 837000).timestamp()
    assert trial.built(log, 'other') is None


def test_time_from_claim_to_driver_is_read_from_the_log():
    log = ('2026-11-22 10:43:06.225 2 INFO x [None a b] [instance: one] Claim '
           'successful on node cloud\n'
           '2026-11-22 10:43:08.725 2 INFO x [None a b] [instance: one] Took '
           '2.34 seconds to spawn the instance on the hypervisor.\n')
    assert trial.claimed(log, 'one') == 0.16


def test_unknown_log_format_is_an_error():
    with pytest.raises(ValueError, match='access log of glance'):
        _parsed('glance', 'something else')


def test_added_is_the_median_of_differences():
    # The machine becomes slower in each round.
    median, (low, high) = paired.added([1.1, 3.1, 5.2], [1, 3, 5])
    assert median == pytest.approx(0.1)
    assert low == pytest.approx(0.1)
    assert high == pytest.approx(0.2)


def test_share_is_the_median_of_ratios():
    share, (low, high) = paired.share([1.02] * 5, [1.2] * 5, [1] * 5)
    assert share == low == high == pytest.approx(0.1)
    assert paired.share([2], [1], [1])[0] == float('inf')


def _trial(seconds, **requests):
    step = {'seconds': seconds, 'requests': {'placement': 6, **requests},
            'transactions': 9, 'writes': 20, 'claimed': 0.2}
    return {'boot': step, 'delete': step}


def _figures(ours, cyborg=1.2, **requests):
    return {'rounds': [{
        'plain': _trial(1), 'cyborg': _trial(cyborg, **{'cyborg-api': 4}),
        'ours': _trial(ours, **requests)}] * 4}


def test_kept_promises_are_reported():
    figures = _figures(1.01, **{comparison.PER_PROVIDER: 3})
    assert comparison.broken(figures) == []
    text = report_.rst('cyborg', comparison.report(figures), 'So.', 'x')
    assert 'requests to cyborg-api (4)' in text
    assert 'is kept by these figures' in ' '.join(text.split())


def _boot_that_reads(took):
    found = _trial(1, **{comparison.PER_PROVIDER: 2})
    found['boot']['asked'] = [
        *(f'placement GET /resource_providers/{uuid}/allocations 200 {took} '
          'ms' for uuid in 'ab'), 'placement GET /allocations/c 200 90 ms']
    return found


def test_reads_of_our_providers_are_reported():
    figures = {'rounds': [{way: _boot_that_reads(took) for way in
                           comparison.WAYS} for took in (4, 5, 7)]}
    said = comparison.report(figures).says[2]
    assert 'has 2 requests' in said
    assert 'takes 10 ms (8 to 14)' in said


def test_figures_without_durations_are_reported():
    said = comparison.report(_figures(1.0)).says[2]
    assert 'has 0 requests' in said
    assert 'takes' not in said


@pytest.mark.parametrize('figures, what', [
    (_figures(1.05), 'nova_accel adds 25% of the time'),
    (_figures(1.0, keystone=1), '1 requests to keystone'),
    (_figures(1.1, cyborg=1.0), 'inf%')])
def test_broken_promises_are_reported(figures, what):
    assert any(what in line for line in comparison.broken(figures))
    assert 'is not kept' in comparison.report(figures).says[3]


class _Trials:
    """Each boot takes what its side takes."""

    def __init__(self, ours, reads=0):
        self._found = {
            plain.OURS: _trial(ours, **{comparison.PER_PROVIDER: reads}),
            plain.NOVA: _trial(2, **{comparison.PER_PROVIDER: 9})}
        self.turns = []

    def have(self, way):
        self.turns.append(way)
        return 9

    def run(self, _flavor):
        return self._found[self.turns[-1]]


def _plain(**sides):
    trials = _Trials(**sides)
    return plain.measure(trials, trials.have, 'flavor', 4, lambda _line: None)


def test_sides_change_once_a_round_and_are_first_in_turn():
    trials = _Trials(1)
    figures = plain.measure(
        trials, trials.have, 'flavor', 3, lambda _line: None)
    assert trials.turns == ['ours', 'nova', 'ours', 'nova']
    assert [found['order'] for found in figures['rounds']] == [
        ('ours', 'nova'), ('nova', 'ours'), ('ours', 'nova')]


def test_plain_servers_that_cost_nothing_are_reported():
    figures = _plain(ours=1)
    assert plain.broken(figures) == []
    said = plain.report(figures).says[0]
    assert 'took 0.500 (0.500 to 0.500)' in said
    assert '6 requests to Placement with nova_accel, and 15 with' in said


@pytest.mark.parametrize('sides, what', [
    ({'ours': 2.5}, 'takes 1.25 times as long'),
    ({'ours': 1, 'reads': 10}, '16 requests where Nova alone has 15')])
def test_plain_servers_that_cost_more_are_reported(sides, what):
    figures = _plain(**sides)
    assert any(what in line for line in plain.broken(figures))
    assert what in plain.report(figures).says[2]


@pytest.mark.parametrize('compared', [comparison, plain])
def test_documentation_matches_the_measurements(compared):
    result = frame.read(compared.NAME)
    written = (frame.DIRECTORY / f'{compared.NAME}.inc').read_text()
    assert written == compared.section(result)
