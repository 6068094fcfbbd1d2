# SPDX-License-Identifier: Apache-2.0
"""The Ansible role sets the nova.conf options of the installation guide."""

import pathlib

import yaml

from tests.integration.cloud import install_guide
from tests.unit import ini

_ROLE = (pathlib.Path(__file__).parents[2]
         / 'contrib' / 'ansible' / 'roles' / 'nova_accel')


def _load(name):
    return yaml.safe_load((_ROLE / name).read_text())


def _added():
    """Return the options that the role adds to: (section, option, value)."""
    defaults = _load('defaults/main.yml')
    for task in _load('tasks/scheduler.yml'):
        for item in task.get('loop', ()):
            present = defaults[item['default'].strip('{} ')]
            section = task['community.general.ini_file']['section']
            if item.get('repeated'):
                yield section, item['option'], present
                yield section, item['option'], item['ours']
            else:
                yield section, item['option'], f'{present},{item["ours"]}'


def _set():
    """Return the options that the role sets, without their values."""
    for name in ('api', 'compute', 'scheduler'):
        for task in _load(f'tasks/{name}.yml'):
            if settings := task.get('community.general.ini_file'):
                if 'loop' not in task:
                    yield settings['section'], settings['option']


def test_scheduler_gets_what_the_guide_says():
    assert sorted(_added()) == sorted(
        option for option in ini.options(install_guide.conf())
        if option[0] == 'filter_scheduler')


def test_all_other_options_of_the_guide_are_set():
    assert sorted(_set()) == sorted({
        (section, option) for section, option, _value
        in ini.options(install_guide.conf()) if section != 'filter_scheduler'})


def test_driver_and_profiles_are_those_of_the_guide():
    values = {option: value
              for _section, option, value in ini.options(install_guide.conf())}
    [driver] = [task['community.general.ini_file']['value']
                for task in _load('tasks/compute.yml')
                if task['name'] == 'Set the driver']
    assert driver == values['compute_driver']
    assert _load('defaults/main.yml')['nova_accel_profile_dir'] == (
        values['profile_dirs'])
