# SPDX-License-Identifier: Apache-2.0
"""All files name the Nova versions for which there are constraints."""

import configparser
import re

import pytest

from tests import novas


@pytest.fixture(scope='module')
def tox():
    config = configparser.ConfigParser(interpolation=None)
    config.read(novas.ROOT / 'tox.ini')
    return config


def test_tested_novas_are_consecutive():
    first, *_between, last = novas.tested()
    assert novas.tested() == list(range(first, last + 1))


def test_readme_names_the_tested_novas():
    assert novas.text() in ' '.join(
        (novas.ROOT / 'README.rst').read_text().split())


@pytest.mark.parametrize('nova', novas.tested())
def test_constraints_are_of_that_nova(nova):
    text = (novas.ROOT / f'constraints/nova{nova}.txt').read_text()
    assert re.search(rf'^nova=={nova}\.', text, re.M)
    # Placement's version numbers are always 18 behind Nova's.
    assert re.search(rf'^openstack-placement=={nova - 18}\.', text, re.M)
    assert novas.release(nova) in text.splitlines()[0]


@pytest.mark.parametrize('nova', novas.tested())
def test_tox_runs_it(tox, nova):
    assert f'nova{nova}' in tox['tox']['env_list'].split(', ')
    assert f'nova{nova}-full' in tox['tox']['labels']
    assert (f'nova{nova}: -c{{toxinidir}}/constraints/nova{nova}.txt'
            in tox['testenv']['deps'])


def test_tox_runs_no_other_nova(tox):
    assert {int(number) for section in tox.values()
            for value in section.values()
            for number in re.findall(r'nova(\d+)', value)
            } == set(novas.tested())


def test_package_requires_the_oldest_tested_nova():
    assert f'\n    nova>={novas.tested()[0]}.0.0\n' in (
        novas.ROOT / 'setup.cfg').read_text()
