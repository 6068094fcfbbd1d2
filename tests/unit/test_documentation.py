# SPDX-License-Identifier: Apache-2.0
"""The documentation: paths that it names, and words that it does not use."""

import importlib.util
import pathlib
import re
import sys

import pytest

_ROOT = pathlib.Path(__file__).parents[2]
_PAGES = [_ROOT / 'README.rst', *(_ROOT / 'doc/source').rglob('*.rst')]

#: Phrases that readers had to read twice, and what to write instead.
_PHRASES = {
    'by somebody\'s hand': 'who did it, or "by hand"',
    'it is not coming': 'was aborted',
    'let go of': 'release',
    'lets go of': 'releases',
    'promised': 'allocated, requested or guaranteed',
    'speaks against': 'a reason to refuse',
    'truth': 'what stores the state',
}


def _name(page):
    return str(page.relative_to(_ROOT))


@pytest.mark.parametrize('page', _PAGES, ids=_name)
def test_page_has_none_of_the_phrases(page):
    text = ' '.join(page.read_text().lower().split())
    assert [phrase for phrase in _PHRASES
            if re.search(rf'\b{phrase}\b', text)] == []


@pytest.mark.parametrize('page', _PAGES, ids=_name)
def test_files_of_the_repository_that_a_page_names_exist(page):
    named = set(re.findall(
        r'(?<![\w/.])(?:doc|etc/nova_accel|tests|nova_accel)/[\w./-]*\w',
        page.read_text()))
    # These are below the state_path of Nova.
    kept = ('nova_accel/bitstreams', 'nova_accel/modules')
    assert {path for path in named if not path.startswith(kept)
            and not (_ROOT / path).exists()} == set()


def _load(name):
    spec = importlib.util.spec_from_file_location(
        name, _ROOT / f'doc/{name}.py')
    module = importlib.util.module_from_spec(spec)
    # The dataclasses of the script look up their module there.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_pictures_are_current():
    """If not, run ``python doc/pictures.py``."""
    pictures = _load('pictures')
    for path, picture in pictures.PICTURES.items():
        assert (pictures.SOURCE / path).read_text() == picture(), path


def test_screenshots_are_current():
    """If not, run ``python doc/screenshots.py``."""
    screenshots = _load('screenshots')
    for path, command in screenshots.SCREENSHOTS.items():
        assert (screenshots.SOURCE / path).read_text() == screenshots.draw(
            command), path


def test_table_of_hardware_is_current():
    """If not, run ``python doc/hardware.py``."""
    hardware = _load('hardware')
    assert hardware.TABLE.read_text() == hardware.table()
