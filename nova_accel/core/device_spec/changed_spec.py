# SPDX-License-Identifier: Apache-2.0
"""Decide whether a changed ``device_spec`` can be used without a restart."""

import collections.abc
import dataclasses

from nova_accel.core import errors
from nova_accel.core.device_spec import spec_entry

_OPTION = '[nova_accel] device_spec'

#: Keys that nova-compute, or its privileged helper, reads only when it starts.
_AT_START = ('num_vfs', 'program', 'program_timeout')

Entries = collections.abc.Sequence[spec_entry.Entry]


def refusal(before: Entries, after: Entries,
            broken: collections.abc.Sequence[errors.AccelError],
            ) -> errors.AccelError | None:
    """Return why the previous entries stay in use, None if they do not.

    :param before: the entries in use
    :param after: the entries after the change
    :param broken: errors in the changed value
    """
    if broken:
        return errors.AccelError(
            _OPTION, f'has changed, and the previous value stays in use: '
            f'{broken[0]}', 'correct it, and send SIGHUP to nova-compute')
    if keys := [key for key in _AT_START if _with(key, before)
                != _with(key, after)]:
        return errors.AccelError(
            _OPTION, 'has changed, and the previous value stays in use: '
            f'entries with {" or ".join(keys)} take effect at the start',
            'restart nova-compute')
    return None


def _with(key: str, entries: Entries) -> list[spec_entry.Entry]:
    """Return the entries that have a key, without their places."""
    return [dataclasses.replace(entry, label='') for entry in entries
            if getattr(entry, key, None) or entry.setting(key)]
