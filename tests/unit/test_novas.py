# SPDX-License-Identifier: Apache-2.0
"""All files name the Nova versions of nova_accel.novas."""

import configparser
import pathlib
import re

import pytest

from nova_accel import novas

_ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope='module')
def tox():
    config = configparser.ConfigParser(interpolation=None)
    config.read(_ROOT / 'tox.ini')
    return config


def test_there_are_constraints_for_each_nova():
    assert {file.name for file in (_ROOT / 'constraints').iterdir()} == {
        f'nova{nova}.txt' for nova in novas.TESTED}


@pytest.mark.parametrize('page', ['README.rst', 'SECURITY.rst'])
def test_page_names_the_tested_novas(page):
    assert novas.text() in ' '.join((_ROOT / page).read_text().split())


def test_pages_agree_which_release_gets_fixes():
    policy, details = (re.search(
        r'\* - nova-accel\n +- (.+)', (_ROOT / page).read_text())[1]
        for page in ('SECURITY.rst', 'doc/source/reference/support.rst'))
    assert policy == details


@pytest.mark.parametrize('nova', novas.TESTED)
def test_constraints_are_of_that_nova(nova):
    text = (_ROOT / f'constraints/nova{nova}.txt').read_text()
    assert re.search(rf'^nova=={nova}\.', text, re.M)
    placement = nova - novas.PLACEMENT_OFFSET
    assert re.search(rf'^openstack-placement=={placement}\.', text, re.M)
    assert novas.release(nova) in text.splitlines()[0]


@pytest.mark.parametrize('nova', novas.TESTED)
def test_tox_runs_it(tox, nova):
    assert re.search(rf'\bnova{nova}(?!-)', tox['tox']['env_list']
                     + tox['tox']['labels'])
    assert f'nova{nova}-full' in tox['tox']['labels']
    assert (f'nova{nova}: -c{{toxinidir}}/constraints/nova{nova}.txt'
            in tox['testenv']['deps'])


def test_tox_runs_no_other_nova(tox):
    assert {int(number) for section in tox.values()
            for value in section.values()
            for number in re.findall(r'nova(\d+)', value)
            } == set(novas.TESTED)


def test_package_requires_the_oldest_tested_nova():
    config = configparser.ConfigParser(interpolation=None)
    config.read(_ROOT / 'setup.cfg')
    extras = config['options.extras_require']['test'].split()
    assert f'nova>={novas.TESTED[0]}.0.0' in extras


def test_debian_package_requires_the_oldest_tested_nova():
    control = (_ROOT / 'debian' / 'control').read_text()
    assert re.findall(r'^ python3-nova \(>= 2:(\d+)~\),$', control, re.M) == [
        str(novas.TESTED[0])]
