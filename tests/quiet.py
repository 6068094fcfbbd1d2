# SPDX-License-Identifier: Apache-2.0
"""Standard output and error, kept for those who have something to say."""

import collections.abc
import contextlib
import os
import tempfile
import typing


@contextlib.contextmanager
def quiet() -> collections.abc.Iterator[tuple[typing.TextIO, typing.TextIO]]:
    """Send what Nova logs and warns nowhere; yield the real two streams."""
    with (os.fdopen(os.dup(1), 'w') as out, os.fdopen(os.dup(2), 'w') as err,
          tempfile.TemporaryFile() as noise):
        os.dup2(noise.fileno(), 1)
        os.dup2(noise.fileno(), 2)
        yield out, err
