# SPDX-License-Identifier: Apache-2.0
"""Options that do not exist are named, with the nearest that does."""

import pytest

from nova_accel import conf
from nova_accel.core import unknown_options

_KNOWN = {'nova_accel': {option.dest for option in conf.OPTIONS},
          'nova_accel_privileged': {'user', 'helper_command'}}


def _found(section, *names):
    return [*unknown_options.find('/etc/nova/nova.conf', {section: names},
                                  _KNOWN)]


@pytest.mark.parametrize('section, name, remedy', [
    ('nova_accel', 'device_profiles_dir',
     'the nearest option is profile_dirs'),
    ('nova_accel', 'devicespec', 'the nearest option is device_spec'),
    ('nova_accel', 'device-spec', 'the nearest option is device_spec'),
    ('NOVA_ACCEL', 'DEVICE_SPEC', 'the nearest option is device_spec'),
    ('nova_accel', 'colour', 'remove it'),
    ('nova_accel_privileged', 'helper', 'the nearest option is '
                                        'helper_command'),
])
def test_an_unknown_option_is_named_with_the_nearest(section, name, remedy):
    [error] = _found(section, name, *_KNOWN[section.lower()])
    assert str(error) == (
        f'[{section}] {name} in /etc/nova/nova.conf: there is no such option, '
        f'and it is ignored; {remedy}')


@pytest.mark.parametrize('section, nearest', [
    ('nova-accel', 'nova_accel'), ('Nova_Acel', 'nova_accel'),
    ('nova_accel_priviledged', 'nova_accel_privileged'),
    ('nova', None), ('DEFAULT', None), ('accel', None), ('pci', None),
    # A plugin may have a section of its own.
    ('nova_accel_npu', None), ('nova_accel', None),
])
def test_a_section_much_like_ours_is_named(section, nearest):
    assert [str(error) for error in _found(section, 'device_spec')] == [
        f'[{section}] in /etc/nova/nova.conf: there is no such section, and '
        f'it is ignored; the nearest section is [{nearest}]'] * bool(nearest)


def test_a_name_stays_on_one_line():
    [error] = _found('nova_accel', 'a\rb')
    assert str(error).startswith("'[nova_accel] a\\rb' in ")
