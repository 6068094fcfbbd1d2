# SPDX-License-Identifier: Apache-2.0
"""``nova-accel-fpga``: program a blank bitstream, and verify that.

The kernel's FPGA manager programs it. The verification reads which function
the ports of the region show: the state of the manager would be the same if
nothing had been programmed.

Sources: see :mod:`nova_accel.host.fpga`.
"""

import collections.abc
import os
import sys

from nova_accel.cleaners import program
from nova_accel.core import errors
from nova_accel.core import model
from nova_accel.core.request import fpga as ids
from nova_accel.host import fpga
from nova_accel.host import operations
from nova_accel.host import tree as trees
from nova_accel.host import trust


def main(arguments: collections.abc.Sequence[str] | None = None,
         sysfs: str = '/sys') -> int:
    """Run the program; return its exit code.

    :param arguments: those of the process by default
    """
    parser = program.parser(
        'nova-accel-fpga', 'Program a blank bitstream into an FPGA, or verify '
        'that.')
    parser.add_argument('--blank', metavar='FILE',
                        help='the bitstream, for clean')
    parser.add_argument('--region', metavar='NUMBER', type=int, default=0,
                        help='of the region on the card, for verify')
    parser.add_argument('--shows', metavar='ID', type=ids.read_id,
                        help='the afu_id with the bitstream; none by default')
    options = parser.parse_args(arguments)
    if options.step == 'clean' and not options.blank:
        parser.error('clean needs --blank')
    return program.run(
        options.step,
        clean=lambda: _clean(sysfs, options.address, options.blank),
        verify=lambda: _verify(sysfs, options.address, options.region,
                               options.shows))


def _clean(sysfs: str, address: model.PciAddress, blank: str) -> None:
    tree = trees.Directory(sysfs)
    try:
        manager = fpga.manager(tree, [_shown(tree, address)[address]])
    except ValueError as error:
        raise errors.AccelError(f'device {address}', str(error), 'let a '
                                'command of the vendor clean it') from None
    trust.check_only_root_writes(os.path.abspath(blank))
    operations.Operations(sysfs).program_by_manager(manager, blank)
    state = fpga.state(tree, manager)
    if state != 'operating':
        raise errors.AccelError(f'FPGA manager {manager}', 'is in state '
                                f'{errors.quote(state)}, not operating')
    print(f'{manager}: {errors.path(blank)} is programmed')


def _verify(sysfs: str, address: model.PciAddress, region: int,
            shows: str | None) -> None:
    tree = trees.Directory(sysfs)
    thing = f'device {address}, region {region}'
    shown = _shown(tree, address)
    members = _members(tree, shown, address, region)
    faults = [*shown[address].faults,
              *(fault for one in members for fault in one.port_faults)]
    if faults:
        raise errors.AccelError(thing, '; '.join(faults))
    if not any(one.ports for one in members):
        raise errors.AccelError(
            thing, 'shows no port, so that nothing tells what is programmed',
            'bind the functions of its ports to their driver, or let a '
            'command of the vendor verify it')
    found = ', '.join(sorted(frozenset().union(
        *(one.functions for one in members))))
    said = f'shows {found or "no function"}'
    if found != (shows or ''):
        raise errors.AccelError(thing, f'{said}, not {shows or "none"}')
    print(f'{thing} {said}')


def _shown(tree: trees.Tree, address: model.PciAddress) -> fpga.All:
    shown = fpga.read(tree)
    if address not in shown:
        raise errors.AccelError(f'device {address}', 'shows no FPGA', 'name '
                                'its driver in the cleaner, such as "driver": '
                                '"dfl-pci"')
    return shown


def _members(tree: trees.Tree, shown: fpga.All, address: model.PciAddress,
             region: int) -> list[fpga.Shown]:
    """Return what the functions of a region show.

    With several regions, each virtual function leads to its own.
    """
    folder = 'sys/bus/pci/devices'
    vfs = sorted(model.PciAddress.parse(name) for name in tree.names(folder)
                 if os.path.basename(tree.link(f'{folder}/{name}/physfn')
                                     or '') == str(address))
    if len(shown[address].regions) > 1 and vfs:
        return [shown[one] for one in vfs[region:region + 1] if one in shown]
    return [shown[one] for one in (address, *vfs) if one in shown]


if __name__ == '__main__':
    sys.exit(main())
