# SPDX-License-Identifier: Apache-2.0
"""What ``isolation = strict`` refuses.

A device is offered only if nova_accel itself makes sure that nothing of one
server is left for the next: by a complete reset, and where a reset does not
erase what servers write, by a cleaner.
"""

import collections.abc

from nova_accel.core import kind as kinds
from nova_accel.core import model
from nova_accel.core.device_spec import reset_methods
from nova_accel.core.device_spec import spec_entry
from nova_accel.core.device_spec import unsafe_host

#: The option, and its values.
OPTION, STANDARD, STRICT = 'isolation', 'standard', 'strict'

_CLEAN = 'name a cleaner in its entry, "clean": "NAME"'


def refusal(unit: model.Unit, functions: model.Functions, pool: kinds.Pool,
            entry: spec_entry.Entry,
            hazards: collections.abc.Iterable[unsafe_host.Hazard],
            ) -> model.Withheld | None:
    """Return why a unit is refused, with all reasons and remedies.

    :param functions: all functions of the machine
    :param hazards: unsafe settings of the host
    """
    found = [*((hazard.reason, hazard.remedy) for hazard in hazards),
             *_resets(unit, functions, pool, entry),
             *_remains([functions[address] for address in unit], pool, entry)]
    return model.Withheld(
        f'{OPTION} = {STRICT} refuses it: '
        + '; '.join(reason for reason, _remedy in found),
        '; '.join(dict.fromkeys(remedy for _reason, remedy in found)),
        model.WithheldState.NOT_STRICT) if found else None


def _resets(unit: model.Unit, functions: model.Functions, pool: kinds.Pool,
            entry: spec_entry.Entry,
            ) -> collections.abc.Iterator[tuple[str, str]]:
    """Yield why the reset of a unit is not known to be complete."""
    if pool.mdevs or not pool.resets:
        yield ('only its driver resets it, and nova_accel cannot tell what '
               'that clears', 'offer the whole device or its virtual '
               'functions, by an entry of the kind pci')
    elif entry.reset == reset_methods.IF_POSSIBLE:
        yield ('its entry says "reset": "if_possible"',
               'take reset out of its entry')
    elif reset_methods.UNKNOWN in reset_methods.names(reset_methods.ways(
            unit, functions, entry.reset) or (), functions):
        yield ('sysfs does not show how it is reset',
               'boot Linux 5.15 or later, which has reset_method')


def _remains(functions: collections.abc.Collection[model.Function],
             pool: kinds.Pool, entry: spec_entry.Entry,
             ) -> collections.abc.Iterator[tuple[str, str]]:
    """Yield what a reset leaves of one server for the next."""
    if entry.keeps_data:
        yield 'its entry says keeps_data', 'take keeps_data out of its entry'
    if not entry.compare_firmware:
        yield ('its entry says "compare_firmware": "no"',
               'take compare_firmware out of its entry')
    if entry.clean or entry.one_time_use:
        return
    if any(function.is_storage for function in functions):
        yield ('it is a storage controller, and a reset does not erase what '
               'servers write to disks', _CLEAN)
    if pool.programmed:
        yield ('it can be programmed, and a reset clears neither its logic '
               'nor its memory', _CLEAN)
