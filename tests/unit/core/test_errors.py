# SPDX-License-Identifier: Apache-2.0
"""Messages name thing, reason and remedy, in one line."""

import pytest

from nova_accel.core import errors


def test_a_message_is_thing_reason_and_remedy():
    error = errors.ProfileError('profile x', 'is bad', 'mend it')
    assert str(error) == 'profile x: is bad; mend it'
    assert (error.thing, error.reason, error.remedy) == (
        'profile x', 'is bad', 'mend it')


def test_a_message_without_remedy_ends_with_the_reason():
    assert str(errors.EntryError('entry', 'is bad')) == 'entry: is bad'


@pytest.mark.parametrize('kind', [
    errors.EntryError, errors.ProfileError, errors.TreeError,
    errors.AssignmentError])
def test_every_error_is_an_accel_error(kind):
    with pytest.raises(errors.AccelError):
        raise kind('thing', 'reason')


@pytest.mark.parametrize('value, text', [
    ('a\nb', "'a\\nb'"),
    ("it's", '"it\'s"'),
    (True, 'True'),
    (None, 'None'),
    ({'a': '\n'}, "{'a': '\\n'}"),
    ('\x1b[31m', "'\\x1b[31m'"),
    ('', "''"),
])
def test_a_quote_is_one_harmless_line(value, text):
    assert errors.quote(value) == text


@pytest.mark.parametrize('value', [
    'x' * 10_000_000, ['x' * 500], '\n' * 60, 'x' * 79, b'\0' * 1000])
def test_a_long_quote_is_cut(value):
    quoted = errors.quote(value)
    assert len(quoted) == errors.QUOTE_LIMIT
    assert quoted.endswith('…')


def test_a_number_that_python_does_not_write_is_quoted_all_the_same():
    number = 1 << 50_000
    assert errors.quote(number) == '<very long int>'
    assert errors.quote([number]) == '<very long list>'


@pytest.mark.parametrize('text', [
    'PGPU', 'resources:FPGA', '0000:81:00.0', 'a-b_c', 'x' * 80])
def test_a_harmless_name_is_plain(text):
    assert errors.plain(text) == text


@pytest.mark.parametrize('text', [
    '', 'a b', 'a\n', 'a\nb', 'é', '\x1b', 'x' * 81, 'x' * 10_000])
def test_any_other_name_is_quoted(text):
    assert errors.plain(text) == errors.quote(text)


@pytest.mark.parametrize('name, text', [
    ('/etc/a b/ü.yaml', '/etc/a b/ü.yaml'),
    ('/etc/a\n.yaml', "'/etc/a\\n.yaml'"),
    ('/' + 'x' * 300, '/' + 'x' * 300)])
def test_a_path_is_whole_unless_it_does_harm(name, text):
    assert errors.path(name) == text


def test_a_quote_of_the_limit_is_whole():
    assert errors.quote('x' * 78) == repr('x' * 78)
