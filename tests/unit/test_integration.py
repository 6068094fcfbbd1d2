# SPDX-License-Identifier: Apache-2.0
"""Parts of the integration test that need no cloud."""

import configparser
import io
import sys
import time

import jinja2
import pytest

from tests.integration import parts
from tests.integration import processes
from tests.integration import steps
from tests.integration.cloud import configuration
from tests.integration.cloud import install_guide
from tests.integration.nested import guest
from tests.integration.tempest import totals


@pytest.fixture
def ours(tmp_path):
    made = processes.Processes(tmp_path, tmp_path)
    yield made
    made.kill(*made.names())


def start(ours, code):
    ours.start('it', [sys.executable, '-u', '-c', code], {'WORD': 'said'},
               ours.log('it').parent)
    steps.wait('its log', lambda: 'said' in ours.log('it').read_text(), 20)


def test_process_starts_and_stops(ours):
    start(ours, 'import os, time; print(os.environ["WORD"]); time.sleep(60)')
    assert ours.names() == ['it']
    ours.stop('it')
    assert not ours.alive('it')
    assert ours.names() == []


def test_process_that_ignores_sigterm_is_killed(ours):
    start(ours, 'import signal, time;'
                'signal.signal(signal.SIGTERM, signal.SIG_IGN);'
                'print("said"); time.sleep(60)')
    before = time.monotonic()
    ours.stop('it', seconds=0.5)
    assert not ours.alive('it')
    assert time.monotonic() - before < 20


def test_exited_process_is_not_alive(ours):
    start(ours, 'print("said")')
    steps.wait('its end', lambda: not ours.alive('it'), 20)


def test_other_process_with_the_same_pid_is_not_stopped(ours, tmp_path):
    start(ours, 'import time; print("said"); time.sleep(60)')
    file = tmp_path / 'it.pid'
    pid, started = file.read_text().split()
    file.write_text(f'{pid} {int(started) - 1}')
    ours.stop('it')
    file.write_text(f'{pid} {started}')
    assert ours.alive('it')


def listing(monkeypatch, *threads):
    """Simulate a /proc in which every process has these threads."""
    monkeypatch.setattr(processes.os, 'listdir', lambda _path: threads)


def test_process_is_alive_while_one_thread_ended(ours, monkeypatch):
    start(ours, 'import time; print("said"); time.sleep(60)')
    listing(monkeypatch, str(ours.pid('it')), '0')
    assert ours.alive('it')


def test_process_without_live_threads_is_not_alive(ours, monkeypatch):
    start(ours, 'import time; print("said"); time.sleep(60)')
    listing(monkeypatch, '0')
    assert not ours.alive('it')


def test_exited_process_is_reported_as_lost(ours):
    start(ours, 'print("said")')
    steps.wait('its end', lambda: ours.lost() == ['it'], 20)
    ours.kill('it')
    assert ours.lost() == []


def test_failing_command_reports_its_output(tmp_path):
    log = tmp_path / 'log'
    with pytest.raises(steps.Failure, match='ended with 3: no such thing'):
        steps.run('sh', '-c', 'echo no such thing; exit 3', log=log)
    assert log.read_text() == 'no such thing\n'


def test_wait_that_times_out_reports_the_last_error():
    def never():
        raise OSError('nobody there')
    with pytest.raises(steps.Failure, match='it is not there .* nobody'):
        steps.wait('it', never, 0.1, 0.01)


def test_parallel_steps_finish_though_one_fails():
    done = []

    def fails():
        raise steps.Failure('no')

    def works():
        time.sleep(0.1)
        done.append(True)
    with pytest.raises(steps.Failure, match='no'):
        steps.at_once(fails, works)
    assert done


def test_steps_are_shown_and_counted():
    out = io.StringIO()
    shown = steps.Steps(out)
    with pytest.raises(steps.Failure), shown.step('one'):
        raise steps.Failure
    assert out.getvalue().startswith('one ...\none: 0.')
    assert 'one' in shown.table()


def names():
    return [name for name in configuration.FILES.list_templates()
            if '/' in name]


@pytest.mark.parametrize('name', names())
def test_templates_have_values_for_all_variables(name):
    assert '{{' not in configuration.render(name)


def test_undefined_template_variable_is_an_error():
    with pytest.raises(jinja2.UndefinedError):
        configuration.FILES.from_string('{{ nothing }}').render()


def test_nova_conf_of_another_host():
    parsed = configparser.ConfigParser(strict=False, interpolation=None)
    parsed.read_string(configuration.render('nova/nova.conf', host='machine'))
    assert parsed['DEFAULT']['host'] == 'machine'
    assert parsed['placement']['username'] == 'placement'


def test_installation_guide_has_the_commands_that_are_run():
    assert {install_guide.PIP, install_guide.WHEEL} <= set(
        install_guide.commands('install'))


def test_options_of_the_installation_guide():
    # A repeated option is valid: it is a list of values.
    parsed = configparser.ConfigParser(strict=False, interpolation=None)
    parsed.read_string(install_guide.conf())
    assert set(parsed.sections()) == {'nova_accel', 'filter_scheduler'}
    assert parsed['DEFAULT']['compute_driver'] == 'accel.LibvirtDriver'
    assert parsed['filter_scheduler']['enabled_filters'].endswith(
        'AcceleratorFilter')
    assert 'AcceleratorWeigher' in parsed['filter_scheduler']['weight_classes']


def test_all_blocks_of_the_installation_guide_are_known():
    """The integration test must run those of a new block as well."""
    assert [len(install_guide.commands(page)) for page in (
        'install', 'configure', 'verify')] == [9, 2, 6]
    assert install_guide.conf().count('[') == 5


#: Console of a guest with a port and a virtual function (files/guest.c).
_CONSOLE = """\
[    0.1] Linux
GUEST {"event": "start", "boot": "one"}
GUEST {"event": "there", "address": "0000:00:01.0", "vendor": "0x1b36", \
"device": "0x000c", "class": "0x060400", "subsystem": "0x0000:0x0000", \
"driver": "pcieport", "numa": -1}
GUEST {"event": "there", "address": "0000:01:00.0", "vendor": "0x8086", \
"device": "0x37c9", "class": "0x0b4000", "subsystem": "0x8086:0x0001", \
"driver": "", "numa": -1}
GUEST {"event": "accelerator", "address": "0000:01:00.0", \
"magic": "0x43434146", "ids": "0x808637c9", "function": 2, \
"serial": "0x000137c8", "before": "0x00000000", "after": "0xcafe0001", \
"logic": "0x00000000"}
GUEST {"event": "ready"}
"""
_GONE = 'GUEST {"event": "gone", "address": "0000:01:00.0"}\n'


def test_devices_of_a_guest_are_read_from_its_console():
    qat = guest.Accelerator('0x808637c9', '0x808637c9', 2, 0x137c8)
    assert guest.Guest(_CONSOLE).devices == [qat]
    assert guest.Guest(_CONSOLE + _GONE).devices == []


def test_device_with_wrong_ids_is_detected():
    wrong = _CONSOLE.replace('"device": "0x37c9"', '"device": "0x37c8"')
    [device] = guest.Guest(wrong).devices
    assert (device.found, device.ids) == ('0x808637c8', '0x808637c9')


def count(passed, skipped):
    """Return the summary that tempest prints."""
    return (f'{{0}} some.test [1.0s] ... ok\n\n======\nTotals\n======\n'
            f'Ran: {passed + skipped} tests in 9.0000 sec.\n'
            f' - Passed: {passed}\n - Skipped: {skipped}\n'
            ' - Expected Fail: 0\n - Unexpected Success: 0\n - Failed: 0\n'
            'Sum of execute time for each test: 9.0 sec.\n')


@pytest.mark.parametrize('said, why', [
    (count(10, 0), ''),
    (count(9, 1), 'tempest has skipped 1'),
    (count(0, 10), 'tempest has skipped 10'),
    (count(0, 0), 'tempest has run nothing'),
    ('No tests were found\n', 'tempest did not count what has passed')])
def test_incomplete_tempest_runs_are_reported(said, why):
    assert totals.lacking(said) == why


def test_outcomes_are_read_from_the_report(tmp_path):
    report = tmp_path / 'report.xml'
    report.write_text(
        '<testsuites><testsuite time="1.5">'
        '<testcase classname="a" name="passes"/>'
        '<testcase classname="a" name="fails"><failure/></testcase>'
        '<testcase classname="a" name="is_skipped"><skipped/></testcase>'
        '<testcase classname="a" name="errs"><system-out/><error/></testcase>'
        '</testsuite></testsuites>')
    result = parts.read(report)
    assert result.seconds == 1.5
    assert result.outcomes == {'a.passes': 'passed', 'a.fails': 'failed',
                               'a.is_skipped': 'skipped', 'a.errs': 'error'}
    assert not result.good


def test_missing_report_is_not_a_success(tmp_path):
    assert not parts.read(tmp_path / 'nothing.xml').good
