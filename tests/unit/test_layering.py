# SPDX-License-Identifier: Apache-2.0
"""The allowed imports of each package, checked in the source."""

import ast
import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).parent.parent.parent
_OURS = 'nova_accel'
_FILES = sorted((_ROOT / _OURS).rglob('*.py'))

#: Modules that a package may import, besides the standard library and itself.
_MAY = {
    'core': {'cachetools', 'os_traits', 'os_resource_classes'},
    'safe_yaml': {'yaml'},
    'host': {'nova_accel.conf', 'nova_accel.core', 'nova_accel.safe_yaml',
             'jsonschema', 'lxml', 'os_resource_classes', 'oslo_config',
             'oslo_privsep', 'stevedore', 'yaml'},
    'cleaners': {'nova_accel.core', 'nova_accel.host'},
    'profiles': {'nova_accel.core', 'nova_accel.safe_yaml', 'jsonschema',
                 'oslo_log', 'yaml'},
    'conf': {'nova_accel.core', 'oslo_config', 'oslo_privsep'},
    'nova_claims': {'nova_accel.core', 'oslo_config'},
    'novas': set(),
    'group_hosts': {'nova', 'nova_accel.core'},
    'moved_flavors': {'nova', 'nova_accel.core', 'oslo_log'},
    'numa_fit': {'nova', 'nova_accel.seams'},
    'seams': set(),
    'exposition': {'nova_accel.core', 'prometheus_client'},
    'shim': {'nova_accel.compute'},
    'testing': {'nova_accel.core', 'nova_accel.host'},
    'plugin': {'nova_accel.core', 'nova_accel.host'},
    'osc': {'nova_accel.core', 'nova_accel.exposition',
            'nova_accel.profiles', 'cliff', 'openstack', 'osc_lib'},
}

#: What only programs and other packages use.
_ENDS = {'nova_accel.cleaners', 'nova_accel.cmd', 'nova_accel.osc',
         'nova_accel.plugin', 'nova_accel.shim', 'nova_accel.testing'}
#: Modules that a package must not import. It may import all others.
_MUST_NOT = {
    'api': {'nova_accel.compute', 'nova_accel.scheduler', *_ENDS},
    'compute': {'nova_accel.api', 'nova_accel.scheduler', *_ENDS},
    'scheduler': {'nova_accel.api', 'nova_accel.compute', 'nova_accel.host',
                  *_ENDS},
    'cmd': {'nova', 'nova_accel.api', 'nova_accel.compute',
            'nova_accel.scheduler', 'nova_accel.shim',
            'nova_accel.group_hosts', 'nova_accel.moved_flavors',
            'nova_accel.numa_fit'},
    # What reads, writes or logs.
    'core': {'asyncio', 'glob', 'io', 'logging', 'pathlib', 'shutil',
             'socket', 'subprocess', 'tempfile', 'urllib.request'},
}


def imports(source):
    """Return all modules that a source imports, at any level."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, 'relative imports are not used here'
            found.update(f'{node.module}.{alias.name}'
                         for alias in node.names)
    return found


def _is_in(module, packages):
    return any(module == package or module.startswith(f'{package}.')
               for package in packages)


def _part(path):
    """Return the package or module directly below nova_accel."""
    return path.relative_to(_ROOT / _OURS).parts[0].removesuffix('.py')


def _module(path):
    parts = path.relative_to(_ROOT).with_suffix('').parts
    return '.'.join(parts).removesuffix('.__init__')


def _imported_by(part):
    return {(_module(path), module) for path in _FILES if _part(path) == part
            for module in imports(path.read_text())}


def test_all_import_forms_are_found():
    assert imports('import a.b, c as d\n'
                   'def f():\n'
                   '    from e.f import g as h, i\n'
                   'if 0:\n'
                   '    import nova\n') == {
        'a.b', 'c', 'e.f.g', 'e.f.i', 'nova'}


def test_every_part_has_a_rule():
    assert {_part(path) for path in _FILES} - {'__init__'} <= {
        *_MAY, *_MUST_NOT}


@pytest.mark.parametrize('part', _MAY)
def test_part_imports_only_allowed_modules(part):
    allowed = {*_MAY[part], f'{_OURS}.{part}', *sys.stdlib_module_names}
    assert [(importer, module) for importer, module in _imported_by(part)
            if not _is_in(module, allowed)] == []


@pytest.mark.parametrize('part', _MUST_NOT)
def test_part_imports_no_forbidden_modules(part):
    assert [(importer, module) for importer, module in _imported_by(part)
            if _is_in(module, _MUST_NOT[part])] == []


def test_only_the_plugins_import_nova():
    importers = {_part(path) for path in _FILES
                 if any(_is_in(module, {'nova'})
                        for module in imports(path.read_text()))}
    assert importers <= {'api', 'compute', 'group_hosts', 'moved_flavors',
                         'numa_fit', 'scheduler'}
    assert importers


def test_seams_are_on_the_page():
    page = (_ROOT / 'doc' / 'source' / 'contributor'
            / 'architecture.rst').read_text()
    seams = {_module(path).removeprefix(f'{_OURS}.') for path in _FILES
             if 'Seam' in (ast.get_docstring(ast.parse(path.read_text()))
                           or '')}
    named = set(re.findall(r'^   \* - ``([\w.]+)``$', page, re.MULTILINE))
    assert seams
    assert seams <= named


def _packages():
    """Return the script that draws the diagram."""
    spec = importlib.util.spec_from_file_location(
        'packages', _ROOT / 'doc' / 'packages.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _graph(name, part=None):
    """Return the imports within a part, by the names of modules or packages.

    :param name: returns the name of a module
    :param part: all modules by default
    """
    files = [path for path in _FILES if part in (None, _part(path))
             and path.stem != '__init__']
    modules = {_module(path) for path in files}
    graph = {name(_module(path)): set() for path in files}
    for path in files:
        graph[name(_module(path))] |= {
            name(module) for module in imports(path.read_text()) & modules}
    return {one: others - {one} for one, others in graph.items()}


def test_no_modules_import_each_other():
    """An import within a function counts as well."""
    assert _packages().levels(_graph(str))


def _package(module):
    """Return the sub-package of a part that a module is in, or the module."""
    return module.split('.')[2]


@pytest.mark.parametrize('part, name, most', [
    ('core', str, 14), ('core', _package, 7), ('compute', str, 10),
    ('compute', _package, 7)])
def test_imports_within_a_part_are_acyclic_and_shallow(part, name, most):
    graph = _graph(name, part)
    assert any(graph.values())
    assert 1 + max(_packages().levels(graph).values()) <= most


def test_diagram_of_the_packages_is_current():
    """If not, run ``python doc/packages.py``."""
    packages = _packages()
    assert packages.picture() == (
        _ROOT / 'doc' / 'source' / 'contributor' / 'packages.svg').read_text()
    assert len(packages.graph()) > 10


def test_core_host_and_profiles_do_not_need_nova():
    program = '''
import importlib, pkgutil, sys
sys.modules['nova'] = None
for name in ('core', 'host', 'profiles'):
    package = importlib.import_module(f'nova_accel.{name}')
    for module in pkgutil.walk_packages(package.__path__,
                                        f'nova_accel.{name}.'):
        if not module.ispkg:
            print(importlib.import_module(module.name).__name__)
for name in ('conf', 'safe_yaml', 'nova_claims'):
    print(importlib.import_module(f'nova_accel.{name}').__name__)
'''
    done = subprocess.run([sys.executable, '-c', program], cwd=_ROOT,
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert {_module(path) for path in _FILES
            if _part(path) in ('core', 'host', 'profiles', 'conf',
                               'safe_yaml', 'nova_claims')
            and path.stem != '__init__'} == set(done.stdout.split())
