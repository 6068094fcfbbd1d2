# SPDX-License-Identifier: Apache-2.0
"""Keep logs and warnings of Nova out of standard output and error."""

import collections.abc
import contextlib
import os
import tempfile
import typing


@contextlib.contextmanager
def quiet() -> collections.abc.Iterator[tuple[typing.TextIO, typing.TextIO]]:
    """Discard all output, for example of Nova; yield the real streams."""
    with (os.fdopen(os.dup(1), 'w') as out, os.fdopen(os.dup(2), 'w') as err,
          tempfile.TemporaryFile() as noise):
        os.dup2(noise.fileno(), 1)
        os.dup2(noise.fileno(), 2)
        yield out, err
