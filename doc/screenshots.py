# SPDX-License-Identifier: Apache-2.0
"""Draw the output of commands: ``python doc/screenshots.py``.

Runs the commands of :data:`SCREENSHOTS` on the recorded machine, and writes
SVG files below ``doc/source``. ``tests/unit/test_documentation.py`` checks
that they are up to date.
"""

import contextlib
import io
import pathlib
import shlex
import tempfile
import xml.sax.saxutils

from nova_accel.cmd import main

ROOT = pathlib.Path(__file__).parent.parent
SOURCE = ROOT / 'doc' / 'source'

_MACHINE = ROOT / 'tests' / 'data' / 'hosts' / 'l1-8gpu.json'
_CONF = '''[nova_accel]
device_spec = {"vendor_id": "10de", "product_id": "2330", \
"resource_class": "CUSTOM_GPU_H100"}
'''

#: Commands by file.
SCREENSHOTS = {'host-show.svg': 'nova-accel host show'}

_LINE, _COLUMN, _MARGIN = 17, 7.9, 16


def draw(command: str) -> str:
    """Return a command and its output as SVG."""
    lines = [f'# {command}', *_output(command).splitlines()]
    width = round(_COLUMN * max(map(len, lines))) + 2 * _MARGIN
    height = _LINE * len(lines) + 2 * _MARGIN
    return '\n'.join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" '
        f'viewBox="0 0 {width} {height}">',
        f'<rect width="{width}" height="{height}" rx="8" fill="#1d2a36"/>',
        '<g font-family="monospace" font-size="13" fill="#e4e9ee">',
        # Browsers merge plain spaces.
        *(f'<text x="{_MARGIN}" y="{_MARGIN + _LINE * number - 4}">'
          + xml.sax.saxutils.escape(line, {' ': '&#160;'}) + '</text>'
          for number, line in enumerate(lines, 1)), '</g>', '</svg>', ''])


def _output(command: str) -> str:
    written = io.StringIO()
    with tempfile.NamedTemporaryFile('w', suffix='.conf') as conf:
        conf.write(_CONF)
        conf.flush()
        _name, *arguments = shlex.split(command)
        with contextlib.redirect_stdout(written):
            main.main([*arguments, '--sysfs-root', str(_MACHINE),
                       '--config-file', conf.name])
    return written.getvalue().replace(str(_MACHINE), '/sys').replace(
        'read from this recording', 'read now by this command')


if __name__ == '__main__':
    for path, command in SCREENSHOTS.items():
        (SOURCE / path).write_text(draw(command))
