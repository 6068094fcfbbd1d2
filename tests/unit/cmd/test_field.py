# SPDX-License-Identifier: Apache-2.0
"""Machines of public reports: what is offered, refused, suggested and said."""

import collections
import json

import pytest

from nova_accel.host import reader
from nova_accel.host import tree
from tests.unit import build
from tests.unit import field

TRIES = [
    pytest.param(machine, attempt, id=f'{path.stem}-{number}', marks=[
        pytest.mark.xfail(bool(attempt.awaits), reason=attempt.awaits)])
    for path in sorted(field.FOLDER.glob('*.yaml'))
    for machine in [field.load(path)]
    for number, attempt in enumerate(machine.tries, 1)]


@pytest.mark.parametrize('machine, attempt', TRIES)
def test_machine_is_offered_as_described(machine, attempt, run, tmp_path):
    machine.write(tmp_path)

    def show(conf):
        _code, out, err = run('host', 'show', '--sysfs-root', str(tmp_path),
                              '-f', 'json', conf=conf)
        return {**json.loads(out), 'log': err}
    shown = show(attempt.nova_conf())
    suggested = [one['entry'] for one in shown['suggestions']]
    assert suggested == list(attempt.suggested)
    assert _offered(
        show(field.Try(suggested).nova_conf()) if suggested else shown,
        attempt.offered) == {
            name: units if isinstance(units, str) else sorted(
                ' '.join(map(field.full, unit.split())) for unit in units)
            for name, units in attempt.offered.items()}
    refused = {one['address']: f'{one["reason"]}; {one["remedy"]}'
               for one in shown['refused' if attempt.entries
                                else 'not_suggested']}
    assert refused.keys() == set(map(field.full, attempt.refused))
    for address, words in attempt.refused.items():
        assert _missing(words, refused[field.full(address)]) == []
    said = '\n'.join([*shown['problems'], *shown['warnings'], shown['log']])
    assert _missing(attempt.said, said) == []
    assert _missing(attempt.unsaid, said) == _listed(attempt.unsaid)
    nodes = {device['address']: str(device['location']['numa_node'])
             for device in shown['devices']}
    assert attempt.numa == {address: nodes[field.full(address)]
                            for address in attempt.numa}


def _offered(shown, expected):
    """Return the units by class, or their number if one is expected."""
    found = collections.defaultdict(list)
    withheld = {one['address'] for one in shown['withheld']}
    for device in shown['devices']:
        for region in device['regions']:
            found[region['resource_class']] += [
                ' '.join(unit) for unit in region['units'][:region['total']]
                if withheld.isdisjoint(unit)]
    return {name: str(len(units)) if isinstance(expected.get(name), str)
            else sorted(units) for name, units in found.items() if units}


def _listed(words):
    return [words] if isinstance(words, str) else list(words)


def _missing(words, text):
    return [word for word in _listed(words) if word not in text]


@pytest.mark.parametrize('path', sorted(
    (build.DATA / 'hosts').glob('*.json')), ids=lambda path: path.stem)
def test_description_of_a_recording_has_the_same_functions(path, tmp_path):
    text = field.describe(reader.read(tree.open_tree(path)))
    copy = tmp_path / 'machine.yaml'
    copy.write_text(f'source: ""\nsituation: ""\ntries: []\n{text}')
    field.load(copy).write(tmp_path)
    assert field.describe(reader.read(tree.open_tree(tmp_path))) == text
