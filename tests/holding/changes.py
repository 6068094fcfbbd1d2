# SPDX-License-Identifier: Apache-2.0
"""What changes while a server holds devices.

A change is a method of :class:`tests.holding.cell.Cell` and its reversal.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Change:
    """A change of the host, or of what its operator offers.

    :param make: method that makes the change
    :param undo: method that reverses it
    :param is_withheld: whether no device is offered to new servers
    :param is_refused: whether the server's own devices cannot be used
    :param is_named: whether an entry still names the devices
    """

    make: str
    undo: str
    is_withheld: bool = True
    is_refused: bool = False
    is_named: bool = True


CHANGES = {
    'none': Change('run_periodic_tasks', 'run_periodic_tasks',
                   is_withheld=False),
    'device drained': Change('drain_devices', 'end_drain'),
    'host drained': Change('drain_host', 'end_drain'),
    'unhealthy': Change('break_devices', 'mend_devices'),
    'reader blocked': Change('block_readers', 'unblock_readers'),
    'entry removed': Change('remove_entries', 'restore_entries',
                            is_named=False),
    'class changed': Change('change_class', 'restore_entries',
                            is_named=False),
    # nova-compute writes "reserved" itself, and sooner or later over this.
    'reserved': Change('reserve', 'unreserve', is_withheld=False),
    'missing': Change('take_away', 'put_back', is_refused=True),
    'another card': Change('swap', 'swap_back', is_refused=True),
}

#: When the change happens, and what fails during the second half.
TIMES = ('before', 'between', 'nova-compute killed', 'libvirtd down',
         'Placement down')
