# SPDX-License-Identifier: Apache-2.0
"""The expected outcome of a cell, from the rule of holding."""

from tests.holding import changes
from tests.holding import operations


def keeps(operation: operations.Operation, change: changes.Change,
          is_performed: bool) -> bool:
    """Whether the server runs with its own devices after the operation.

    A server keeps the devices that its allocations on its host name. Only a
    device that is missing, or another card by now, is refused to it; it gets
    no other device instead. If neither an entry nor a record tells which
    device the allocations name, it is refused as well.

    :param is_performed: whether Nova has accepted the operation, or has failed
        in its first half
    """
    is_known = change.is_named or operation.has_record
    return not (is_performed and operation.starts_the_guest and (
        change.is_refused or not is_known))


def is_offered(change: changes.Change) -> bool:
    """Whether a new server can get devices that nobody holds."""
    return not change.is_withheld
