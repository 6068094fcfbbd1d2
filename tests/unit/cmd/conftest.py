# SPDX-License-Identifier: Apache-2.0
"""Fixtures for tests of the command nova-accel."""

import pytest

from nova_accel.cmd import main


@pytest.fixture
def run(capsys, tmp_path):
    """Call the command; return its exit code, stdout and stderr."""
    nova_conf = tmp_path / 'nova.conf'
    nova_conf.write_text('')

    def call(*arguments, conf=''):
        nova_conf.write_text(conf)
        code = main.main(['--config-file', str(nova_conf), *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err
    return call
