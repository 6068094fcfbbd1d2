# SPDX-License-Identifier: Apache-2.0
"""Draw which package imports which: ``python doc/packages.py``.

Writes ``doc/source/contributor/packages.svg``. It leaves out an arrow if other
arrows lead from its start to its end. ``tests/unit/test_layering.py`` checks
that the picture is up to date. Graphviz is not used: its layout depends on its
version.
"""

import ast
import graphlib
import pathlib

_ROOT = pathlib.Path(__file__).parent.parent
_PICTURE = (pathlib.Path(__file__).parent / 'source' / 'contributor'
            / 'packages.svg')

#: Not drawn: modules that many import, and modules outside of packages.
_ASIDE = {'__init__', 'conf', 'exposition', 'group_hosts', 'moved_flavors',
          'seams', 'safe_yaml', 'nova_claims', 'novas', 'numa_fit', 'testing',
          'plugin', 'shim'}
_ASIDE_IN_CORE = [], ['__init__'], ['errors'], ['unknown_options']

_WIDTH, _HEIGHT, _ACROSS, _DOWN, _EDGE = 150, 34, 24, 56, 12


def graph() -> dict[str, set[str]]:
    """Return the packages of nova_accel that each package imports."""
    found: dict[str, set[str]] = {}
    for path in sorted((_ROOT / 'nova_accel').rglob('*.py')):
        name = _package('.'.join(
            path.relative_to(_ROOT).with_suffix('').parts))
        if name:
            found.setdefault(name, set()).update(
                other for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.ImportFrom) and node.module
                for alias in node.names
                if (other := _package(f'{node.module}.{alias.name}'))
                and other != name)
    return found


def _package(module: str) -> str:
    """Return the box of a module, '' for none. The core has several."""
    first, *rest = module.split('.')
    if first != 'nova_accel' or not rest or rest[0] in _ASIDE:
        return ''
    if rest[0] != 'core':
        return rest[0]
    return '' if rest[1:2] in _ASIDE_IN_CORE else f'core.{rest[1]}'


def levels(edges: dict[str, set[str]]) -> dict[str, int]:
    """Return the length of the longest chain of imports by package."""
    found: dict[str, int] = {}
    for name in graphlib.TopologicalSorter(edges).static_order():
        found[name] = max((found[other] + 1 for other in edges[name]),
                          default=0)
    return found


def _reduced(edges):
    """Return the graph without the arrows that are left out."""
    def reached(name):
        return edges[name].union(*(reached(other) for other in edges[name]))
    return {name: others - set().union(*(reached(other)
                                         for other in others))
            for name, others in edges.items()}


def picture() -> str:
    """Return the picture as SVG, readable on light and on dark pages."""
    edges = graph()
    height = levels(edges)
    rows = [[name for name in sorted(edges) if height[name] == level]
            for level in range(max(height.values()), -1, -1)]
    widest = max(map(len, rows))
    places = {name: (
        _EDGE + (widest - len(row)) * (_WIDTH + _ACROSS) / 2
        + number * (_WIDTH + _ACROSS), _EDGE + line * (_HEIGHT + _DOWN))
        for line, row in enumerate(rows) for number, name in enumerate(row)}
    arrows = [
        f'<line x1="{places[name][0] + _WIDTH / 2:.0f}" '
        f'y1="{places[name][1] + _HEIGHT:.0f}" '
        f'x2="{places[other][0] + _WIDTH / 2:.0f}" '
        f'y2="{places[other][1] - 4:.0f}" marker-end="url(#head)"/>'
        for name, others in _reduced(edges).items()
        for other in sorted(others)]
    boxes = [
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'rx="5"/><text x="{x + _WIDTH / 2:.0f}" y="{y + 22:.0f}">{name}'
        '</text>' for name, (x, y) in places.items()]
    size = (2 * _EDGE + widest * (_WIDTH + _ACROSS) - _ACROSS,
            2 * _EDGE + len(rows) * (_HEIGHT + _DOWN) - _DOWN)
    return '\n'.join([
        f'<svg xmlns="http://www.w3.org/2000/svg" '
        f'viewBox="0 0 {size[0]} {size[1]}" width="{size[0]}">',
        '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="6" '
        'refY="3" orient="auto"><path d="M0,0 L6,3 L0,6 z" fill="#7a8794"/>'
        '</marker></defs>',
        '<g stroke="#7a8794" stroke-width="1.2">', *arrows, '</g>',
        '<g fill="#e8f0f7" stroke="#3b6ea5" font-family="sans-serif" '
        'font-size="14" text-anchor="middle">',
        '<style>text { fill: #12283f; stroke: none }</style>', *boxes,
        '</g>', '</svg>']) + '\n'


if __name__ == '__main__':
    _PICTURE.write_text(picture())
