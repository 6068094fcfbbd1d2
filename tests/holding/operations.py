# SPDX-License-Identifier: Apache-2.0
"""The operations of the cells, in two halves each."""

import dataclasses

from tests.functional import cloud


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation, or two that belong together.

    :param first: action that precedes the change, or None
    :param second: action after which the server has its devices
    :param fails: whether the first action fails
    :param starts_the_guest: whether the second action starts a guest
    :param moves: whether the operation needs a second host
    :param has_new: whether the server keeps the devices that it has after the
        first action, and not those before
    :param has_record: whether anything tells which units of a resource
        provider the server had
    """

    first: dict | str | None
    second: dict | str
    fails: bool = False
    starts_the_guest: bool = True
    moves: bool = False
    has_new: bool = False
    has_record: bool = True

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of device whose outcome is certain."""
        return ('card', 'vf') if self.has_record else ('card',)


_REBOOT = {'reboot': {'type': 'HARD'}}
_REBUILD = {'rebuild': {'imageRef': cloud.IMAGE}}

#: Actions that are no action of the Nova API are methods of the cell.
OPERATIONS = {
    'reboot': Operation(None, _REBOOT),
    'start': Operation({'os-stop': None}, {'os-start': None}),
    'resume': Operation({'suspend': None}, {'resume': None}),
    'rebuild': Operation(None, _REBUILD),
    'reboot after a failed rebuild': Operation(_REBUILD, _REBOOT, fails=True),
    'rebuild after a failed rebuild': Operation(_REBUILD, _REBUILD,
                                                fails=True),
    'unrescue': Operation('rescue', {'unrescue': None}),
    'unshelve': Operation({'shelve': None}, {'unshelve': None}),
    'reboot without a domain': Operation('undefine', _REBOOT,
                                         has_record=False),
    'start of the host': Operation('power_off', 'power_on'),
    'revert to none': Operation('resize_to_none', {'revertResize': None}),
    'revert to another': Operation('resize_to_another',
                                   {'revertResize': None}),
    'confirm': Operation('resize_to_another', {'confirmResize': None},
                         starts_the_guest=False, has_new=True),
    'revert of a migration': Operation({'migrate': None},
                                       {'revertResize': None}, moves=True),
    'failed live migration': Operation(None, 'live_migrate',
                                       starts_the_guest=False, moves=True),
}
