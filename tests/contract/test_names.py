# SPDX-License-Identifier: Apache-2.0
"""The names of Nova that the code uses."""

import ast
import importlib
import pathlib
import pkgutil

import pytest

import nova_accel

_CODE = pathlib.Path(nova_accel.__file__).parent


def _names(tree):
    """Yield the dotted names of Nova that a module uses."""
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and _is_nova(node.module or ''):
            modules.update({alias.asname or alias.name:
                            f'{node.module}.{alias.name}'
                            for alias in node.names})
        elif isinstance(node, ast.Import):
            modules.update({alias.asname: alias.name for alias in node.names
                            if alias.asname and _is_nova(alias.name)})
    yield from modules.values()
    for node in ast.walk(tree):
        first, *rest = _chain(node)
        if first in modules and rest:
            yield '.'.join((modules[first], *rest))


def _chain(node):
    """Return the names of a.b.c; '' is the first of other expressions."""
    if isinstance(node, ast.Attribute):
        return [*_chain(node.value), node.attr]
    return [node.id if isinstance(node, ast.Name) else '']


def _is_nova(module):
    return module.partition('.')[0] == 'nova'


_USED = sorted({name for file in _CODE.rglob('*.py')
                for name in _names(ast.parse(file.read_text()))})


def test_names_of_nova_are_found():
    assert 'nova.compute.task_states' in ' '.join(_USED)


@pytest.mark.parametrize('name', _USED)
def test_name_exists_in_nova(name):
    # Registering adds Nova's objects to nova.objects.
    importlib.import_module('nova.objects').register_all()
    pkgutil.resolve_name(name)
