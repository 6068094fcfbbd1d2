# SPDX-License-Identifier: Apache-2.0
"""The store of profiles, while files are added, changed and removed."""

import json
import logging
import os
import subprocess
import sys

import pytest

from nova_accel.profiles import document
from nova_accel.profiles import store
from tests.unit import build


def _text(*names, amount=1):
    return json.dumps([{'name': name, 'groups': [
        {'resources': {'PGPU': amount}}]} for name in names])


def _write(path, text):
    """Write a file as editors do: replace it by a new file."""
    new = path.with_name(f'.{path.name}.new')
    new.write_bytes(text if isinstance(text, bytes) else text.encode())
    os.replace(new, path)


def _names(profiles):
    return [profile.name for profile in profiles.all()]


def _amount(profiles, name='p'):
    return profiles.get(name).groups[0].resources['PGPU']


def _problem(profiles):
    """Return the only message."""
    [error] = profiles.problems()
    assert '\n' not in str(error)
    return str(error)


@pytest.fixture
def profiles(tmp_path):
    return store.Store([str(tmp_path)])


@pytest.mark.parametrize('directories', [[], ['/nonexistent/profiles']])
def test_missing_directory_has_no_profiles_and_no_problems(directories):
    empty = store.Store(directories)
    assert (empty.all(), empty.problems(), empty.get('p')) == ([], (), None)


def test_profiles_are_found_by_name_in_any_file(tmp_path, profiles):
    _write(tmp_path / 'a.json', _text('q', 'p'))
    _write(tmp_path / 'b.yaml', _text('r'))
    _write(tmp_path / 'c.yml', _text('a'))
    assert _names(profiles) == ['a', 'p', 'q', 'r']
    assert profiles.get('q').name == 'q'
    assert profiles.get('s') is None
    assert profiles.problems() == ()


@pytest.mark.parametrize('name', [
    '.hidden.yaml', 'p.txt', 'p.yaml~', 'p.yaml.bak', 'yaml', 'README.rst'])
def test_other_files_are_ignored(tmp_path, profiles, name):
    (tmp_path / name).write_bytes(b'\xff')
    assert (profiles.all(), profiles.problems()) == ([], ())


def test_unquoted_off_equals_quoted_off(tmp_path, profiles):
    for name, off in (('bare', 'off'), ('quoted', '"off"')):
        _write(tmp_path / f'{name}.yaml', f'name: {name}\ngroups:\n'
               f'- resources: {{PGPU: 1}}\n  numa: {off}\n')
    assert profiles.problems() == ()
    assert profiles.get('bare').groups == profiles.get('quoted').groups
    assert profiles.get('bare').groups[0].numa == 'off'


def test_list_of_groups_is_named_after_its_file(tmp_path, profiles):
    _write(tmp_path / 'nvme.profile.json', '[{"resources:CUSTOM_PCI": "1"}]')
    assert 'nvme.profile' in _problem(profiles)
    _write(tmp_path / 'nvme-profile.json', '[{"resources:CUSTOM_PCI": "1"}]')
    assert _names(profiles) == ['nvme-profile']


def test_cyborgs_examples_can_share_a_directory():
    samples = store.Store([build.DATA / 'profiles'])
    assert {'afexample_3', 'fpga-dp1', 'bym-1', 'dp_example_1', 'pci-sim',
            'nvme-profile', 'fake_xilinx_fpga_dp', 'fakedev-dp'} == set(
        _names(samples))


def test_profile_follows_its_file(tmp_path, profiles):
    path = tmp_path / 'a.json'
    assert profiles.get('p') is None
    _write(path, _text('p'))
    assert _amount(profiles) == 1
    _write(path, _text('p', amount=2))
    assert _amount(profiles) == 2
    path.unlink()
    assert profiles.get('p') is None


def test_profile_removed_from_its_file_is_removed(tmp_path, profiles):
    path = tmp_path / 'a.json'
    _write(path, _text('p', 'q'))
    assert _names(profiles) == ['p', 'q']
    _write(path, _text('q'))
    assert _names(profiles) == ['q']


@pytest.mark.parametrize('broken', [
    b'{', b'', b'\xff\xfe\0binary', b'[' * 100_000, b'x' * 600_000])
def test_broken_file_keeps_its_last_valid_content_and_recovers(
        tmp_path, profiles, broken):
    path = tmp_path / 'a.json'
    _write(path, _text('p'))
    assert _amount(profiles) == 1
    _write(path, broken)
    assert _amount(profiles) == 1
    assert str(path) in _problem(profiles)
    _write(path, _text('p', amount=3))
    assert _amount(profiles) == 3
    assert profiles.problems() == ()


def test_broken_profile_keeps_its_last_valid_content(
        tmp_path, profiles):
    path = tmp_path / 'a.json'
    _write(path, _text('p', 'q'))
    profiles.refresh()
    broken = json.loads(_text('p', 'q', amount=2))
    broken[0]['groups'] = []
    _write(path, json.dumps(broken))
    assert (_amount(profiles, 'p'), _amount(profiles, 'q')) == (1, 2)
    assert "profile 'p' in " in _problem(profiles)


@pytest.mark.parametrize('fields, left', [
    ({'name': 'q', 'groups': []}, ['q']),
    ({'name': 'q', 'groups': [{'resources': {'FOO': 1}}]}, ['q']),
    ({'name': 'r', 'groups': []}, []),
    ({'name': 'a/b', 'groups': []}, []),
    # Without a valid name, the document can be any profile.
    ({'groups': []}, ['p', 'q']),
    ({'name': 7, 'groups': []}, ['p', 'q']),
])
def test_removed_profile_is_removed_while_another_is_broken(
        tmp_path, profiles, fields, left):
    path = tmp_path / 'a.json'
    _write(path, _text('p', 'q'))
    assert _names(profiles) == ['p', 'q']
    _write(path, json.dumps([*json.loads(_text('s')), fields]))
    assert _names(profiles) == [*left, 's']
    assert len(profiles.problems()) == 1


def test_duplicate_profile_keeps_no_removed_one(tmp_path, profiles):
    _write(tmp_path / 'a.json', _text('p', 'q'))
    assert _names(profiles) == ['p', 'q']
    _write(tmp_path / 'a.json', _text('q', 'q', amount=2))
    assert _names(profiles) == ['q']
    assert _amount(profiles, 'q') == 2


def test_removed_profile_does_not_return_when_file_breaks(tmp_path, profiles):
    path = tmp_path / 'a.json'
    _write(path, _text('p', 'q'))
    profiles.refresh()
    _write(path, json.dumps([{'name': 'q', 'groups': []}]))
    assert _names(profiles) == ['q']
    _write(path, '[')
    assert _names(profiles) == ['q']


def test_file_broken_from_the_start_has_no_profiles(
        tmp_path, profiles):
    _write(tmp_path / 'a.yaml', 'name: [')
    _write(tmp_path / 'b.yaml', _text('p'))
    assert _names(profiles) == ['p']
    assert str(tmp_path / 'a.yaml') in _problem(profiles)


@pytest.mark.parametrize('content, says', [
    (b'x' * 10_000_000, f'is larger than {document.MAX_BYTES} bytes'),
    (b'\xff\xfe\x00\x01', 'is not UTF-8 text'),
    (b'name: \xff', 'is not UTF-8 text'),
    (b'[' * 100_000, 'is nested too deep'),
    (b'a: &a [x]\nb: *a\n', 'aliases (*name) are not accepted'),
    (b'name: a/b\ngroups: [{resources: {PGPU: 1}}]', "profile 'a/b' in "),
    (b'name: "a\\nb"\ngroups: [{resources: {PGPU: 1}}]',
     "profile 'a\\nb' in "),
    (b'name: ' + b'x' * 300 + b'\ngroups: [{resources: {PGPU: 1}}]',
     'is not a valid name: use 1 to 255'),
])
def test_invalid_file_gives_one_line(
        tmp_path, profiles, content, says):
    path = tmp_path / 'a.yaml'
    _write(path, content)
    message = _problem(profiles)
    assert says in message
    assert str(path) in message
    assert len(message) < 500
    assert profiles.all() == []


def test_file_of_the_maximum_size_is_read(tmp_path, profiles):
    text = _text('p')
    _write(tmp_path / 'a.yaml',
           text + '\n' + ' ' * (document.MAX_BYTES - len(text) - 1))
    assert _names(profiles) == ['p']


def test_non_file_gives_one_line(tmp_path):
    for number, make in enumerate((
            lambda path: path.mkdir(),
            lambda path: path.symlink_to(path.name),
            lambda path: path.symlink_to('gone'))):
        directory = tmp_path / str(number)
        directory.mkdir()
        make(directory / 'a.yaml')
        message = _problem(store.Store([directory]))
        assert f'{directory / "a.yaml"}: cannot be read (' in message


@pytest.mark.skipif(os.geteuid() == 0, reason='root reads everything')
def test_file_is_read_once_permissions_allow(tmp_path, profiles):
    path = tmp_path / 'a.yaml'
    _write(path, _text('p'))
    path.chmod(0)
    assert 'cannot be read (Permission denied)' in _problem(profiles)
    path.chmod(0o600)
    assert _names(profiles) == ['p']


def test_pipe_does_not_block(tmp_path):
    os.mkfifo(tmp_path / 'a.yaml')
    program = ('import sys; from nova_accel.profiles import store; '
               'print(store.Store(sys.argv[1:]).problems())')
    done = subprocess.run([sys.executable, '-c', program, str(tmp_path)],
                          cwd=build.DATA.parent.parent, timeout=10,
                          capture_output=True, check=True, text=True)
    assert 'a.yaml' in done.stdout


@pytest.mark.parametrize('make', [
    lambda path: path.write_text('x'), lambda path: path.symlink_to(path)])
def test_unlistable_directory_gives_one_line(
        tmp_path, make):
    (tmp_path / 'good').mkdir()
    _write(tmp_path / 'good' / 'a.json', _text('p'))
    make(tmp_path / 'bad')
    both = store.Store([tmp_path / 'bad', tmp_path / 'good'])
    assert f'{tmp_path / "bad"}: cannot be listed (' in _problem(both)
    assert _names(both) == ['p']


@pytest.mark.parametrize('end', ['', '/'])
def test_unlistable_directory_keeps_its_last_valid_content(
        tmp_path, end):
    directory = tmp_path / 'd'
    directory.mkdir()
    _write(directory / 'a.json', _text('p'))
    profiles = store.Store([f'{directory}{end}'])
    assert _names(profiles) == ['p']
    directory.rename(tmp_path / 'away')
    directory.symlink_to('d')
    assert any('cannot be listed' in str(problem)
               for problem in profiles.problems())
    assert _names(profiles) == ['p']


def test_file_name_with_newline_gives_one_line(tmp_path, profiles):
    (tmp_path / 'a\nb.yaml').write_text('[')
    _problem(profiles)


def test_first_of_two_files_with_the_same_profile_is_used(
        tmp_path, profiles):
    _write(tmp_path / 'b.json', _text('p', amount=2))
    assert _amount(profiles) == 2
    _write(tmp_path / 'a.json', _text('p', amount=1))
    assert _amount(profiles) == 1
    message = _problem(profiles)
    assert message.startswith(
        f"profile 'p' in {tmp_path / 'b.json'}: {tmp_path / 'a.json'} has")
    (tmp_path / 'a.json').unlink()
    assert _amount(profiles) == 2
    assert profiles.problems() == ()


def test_files_are_read_in_order_of_name(tmp_path, profiles):
    for number in (5, 3, 8, 1, 9, 7, 2, 6, 4):
        _write(tmp_path / f'{number}.json', _text('p', amount=number))
    assert _amount(profiles) == 1
    assert len(profiles.problems()) == 8


def test_first_of_two_directories_is_used(tmp_path):
    for amount, name in ((1, 'z'), (2, 'a')):
        (tmp_path / name).mkdir()
        _write(tmp_path / name / 'p.json', _text('p', amount=amount))
    assert _amount(store.Store([tmp_path / 'z', tmp_path / 'a'])) == 1
    assert _amount(store.Store([tmp_path / 'a', tmp_path / 'z'])) == 2


def test_identical_profiles_in_two_files_are_no_problem(tmp_path, profiles):
    _write(tmp_path / 'a.json', _text('p'))
    _write(tmp_path / 'b.json', _text('p'))
    assert (_names(profiles), profiles.problems()) == (['p'], ())


def test_duplicate_in_one_file_is_reported_and_the_first_used(
        tmp_path, profiles):
    twice = json.loads(_text('p')) + json.loads(_text('p', amount=2))
    _write(tmp_path / 'a.json', json.dumps(twice))
    assert _amount(profiles) == 1
    assert "profile 'p' in " in _problem(profiles)


def test_unchanged_file_is_not_read_again(tmp_path, profiles):
    path = tmp_path / 'a.json'
    _write(path, _text('p'))
    before = profiles.get('p')
    assert profiles.get('p') is before
    os.utime(path, ns=(1, 1))
    assert profiles.get('p') is not before


def test_unexpected_exception_affects_its_file_only(
        tmp_path, profiles, monkeypatch):
    bad, reader = tmp_path / 'a.json', document.read
    _write(bad, _text('p'))
    _write(tmp_path / 'b.json', _text('q'))
    assert _names(profiles) == ['p', 'q']

    def read(text, source, name):
        if source == str(bad):
            raise KeyError('no\nkey')
        return reader(text, source, name)
    monkeypatch.setattr(document, 'read', read)
    os.utime(bad, ns=(1, 1))
    for _time in range(2):
        assert _problem(profiles).startswith(
            f'{bad}: cannot be parsed (KeyError: ')
        assert _names(profiles) == ['p', 'q']


def test_problem_is_logged_once_until_it_changes(
        tmp_path, profiles, caplog):
    path = tmp_path / 'a.json'
    with caplog.at_level(logging.INFO, store.__name__):
        _write(path, '{')
        for _time in range(3):
            profiles.refresh()
        assert [record.levelname for record in caplog.records] == ['ERROR']
        _write(path, '[')
        profiles.refresh()
        _write(path, _text('p'))
        profiles.refresh()
        _write(path, '{')
        profiles.refresh()
    assert [record.levelname for record in caplog.records] == [
        'ERROR', 'ERROR', 'INFO', 'ERROR']
    assert not any('\n' in record.getMessage() for record in caplog.records)


def test_many_profiles_are_read_in_reasonable_time(tmp_path, profiles):
    _write(tmp_path / 'a.json', _text(*(f'p{n}' for n in range(1000))))
    assert len(profiles.all()) == 1000
