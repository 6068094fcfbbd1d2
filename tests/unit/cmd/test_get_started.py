# SPDX-License-Identifier: Apache-2.0
"""The nova-accel commands of the page "Get started".

They run on a recording. Their output must be the output that the page shows.
"""

import shlex

import pytest
import yaml

from tests.integration.cloud import install_guide
from tests.unit import build

_MACHINE = str(build.DATA / 'hosts' / 'l1-8gpu.json')


def _blocks(start) -> list[str]:
    """Return the literal blocks of the page that begin with a text."""
    return [block for block in install_guide.blocks('get-started')
            if block.startswith(start)]


@pytest.mark.parametrize('number', range(2))
def test_host_show(run, number):
    """The page runs the command without an entry, then with an entry."""
    command, _, expected = _blocks('# nova-accel host show')[
        number].partition('\n')
    conf = ''.join(_blocks('[DEFAULT]')) if number else ''
    _name, *arguments = shlex.split(command.removeprefix('# '))
    code, out, err = run(*arguments, '--sysfs-root', _MACHINE, conf=conf)
    assert code == 0, err
    assert install_guide.matches(expected, out.replace(
        'read from this recording', 'read now by this command')), out


def test_profile_check(run, tmp_path):
    [profile] = _blocks('name: gpu-pair')
    (tmp_path / 'gpu.yaml').write_text(profile)
    assert yaml.safe_load(profile)['name'] == 'gpu-pair'
    command, _, expected = _blocks('# nova-accel profile')[0].partition('\n')
    _name, *arguments = shlex.split(command.removeprefix('# '))
    code, out, err = run(
        *arguments, conf=f'[nova_accel]\nprofile_dirs = {tmp_path}\n')
    assert (code, (out + err).strip()) == (0, expected)
