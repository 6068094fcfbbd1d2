# SPDX-License-Identifier: Apache-2.0
"""The commands, in an environment with Nova."""

import os
import subprocess
import sys


def test_commands_do_not_repeat_the_warning_of_eventlet():
    environment = {name: value for name, value in os.environ.items()
                   if name != 'PYTHONWARNINGS'}
    done = subprocess.run(
        [sys.executable, '-m', 'nova_accel.cmd.main', '--version'],
        env=environment, check=True, text=True, capture_output=True)
    assert done.stdout
    assert done.stderr == ''
