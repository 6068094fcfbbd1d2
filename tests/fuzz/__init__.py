# SPDX-License-Identifier: Apache-2.0
"""Fuzzing: what others write is read without a crash, in bounded resources.

An input is a changed copy of a real file or message. Random changes with a
fixed seed were preferred to hypothesis, which the unit tests use: they make
more than ten times as many inputs per second, and start from real files.

Bounds of one input: see :mod:`tests.fuzz.worker`.
"""

import importlib

from tests.fuzz import harness

#: Where each harness is. Those of ``with_nova`` need Nova.
HARNESSES = {
    'profiles': 'tests.fuzz.documents:Profiles',
    'flavors': 'tests.fuzz.documents:Flavors',
    'device_spec': 'tests.fuzz.documents:DeviceSpec',
    'link_domains': 'tests.fuzz.documents:LinkDomains',
    'sysfs': 'tests.fuzz.machines:Sysfs',
    'recordings': 'tests.fuzz.machines:Recordings',
    'domains': 'tests.fuzz.messages:Domains',
    'host_summary': 'tests.fuzz.messages:HostSummary',
    'command_output': 'tests.fuzz.messages:CommandOutput',
    'fmpm': 'tests.fuzz.messages:Fmpm',
    'live_migration': 'tests.fuzz.with_nova:LiveMigration',
    'bitstreams': 'tests.fuzz.with_nova:Bitstreams',
}

#: The harnesses that need no Nova.
WITHOUT_NOVA = [name for name, place in HARNESSES.items()
                if 'with_nova' not in place]


def load(place: str) -> harness.Harness:
    """Return a harness.

    :param place: its name, or ``module:class``
    """
    module, _colon, name = HARNESSES.get(place, place).partition(':')
    return getattr(importlib.import_module(module), name)()
