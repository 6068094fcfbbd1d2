# SPDX-License-Identifier: Apache-2.0
"""The command nova-accel, called as a person or a program calls it."""

import pytest

from nova_accel.cmd import main


@pytest.fixture
def run(capsys, tmp_path):
    """Call the command; exit code, what it printed, what it complained."""
    nova_conf = tmp_path / 'nova.conf'
    nova_conf.write_text('')

    def call(*arguments, conf=''):
        nova_conf.write_text(conf)
        code = main.main(['--config-file', str(nova_conf), *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err
    return call
