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


def test_number_with_too_many_digits_can_be_quoted():
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
def test_path_is_quoted_only_if_it_is_not_printable(name, text):
    assert errors.path(name) == text


def test_quote_of_the_maximal_length_is_not_cut():
    assert errors.quote('x' * 78) == repr('x' * 78)


@pytest.mark.parametrize('text, told', [
    ('device 0000:45:00.0 (8086:09c4): is not there any more',
     'device … (8086:09c4): is not there any more'),
    ('device 45:00.0: other servers hold the region: '
     'aaaaaaaa-0000-4000-8000-0000000000aa, instance-0000002a',
     'device …: other servers hold the region: …, …'),
    ('resource provider node-1_accel_0000:81:00.0_FPGA_region0: 0 are free',
     'resource provider … 0 are free'),
    ("its 'program' (/opt/x/y) ended with 3 and said 'on compute7'",
     'its … … ended with 3 and said …'),
    # Nested quotation marks, and a truncated quotation.
    ('said ' + errors.quote('it\'s "compute7" here'), 'said …'),
    ('said ' + errors.quote('x' * 75 + ' compute7') + "; it's 'y'",
     "said …; it's …"),
    ('http://10.0.0.5:9292/v2 on 10.0.0.5 or compute7.example.com is down',
     '… on … or … is down'),
    ('compute-1 and node-1.x say so, compute-10 does not',
     '… and … say so, compute-10 does not'),
    # Text without names.
    ('wants 3 of CUSTOM_GPU on one NUMA node; libvirt 10.0.0 can, the most '
     'is 2, IOMMU group 7', None),
    ('the driver says Input/output error', None),
])
def test_public_text_has_no_names(text, told):
    assert errors.public(text, ('compute-1', 'node-1.x', '')) == (
        text if told is None else told)


def test_long_text_is_cut_before_it_is_searched():
    assert len(errors.public('a.' * 100_000)) <= 1000


@pytest.mark.parametrize('number, words, text', [
    (0, ('host',), '0 hosts'), (1, ('host',), '1 host'),
    (2, ('host',), '2 hosts'), (1, ('entry', 'entries'), '1 entry'),
    (3, ('entry', 'entries'), '3 entries'), (1, ('is', 'are'), '1 is')])
def test_count_has_the_singular_for_one(number, words, text):
    assert errors.count(number, *words) == text
