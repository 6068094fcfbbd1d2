# SPDX-License-Identifier: Apache-2.0
"""What the options of a host permit, beside its entries."""

import collections.abc
import dataclasses

from nova_accel.core.device_spec import cleaner
from nova_accel.core.device_spec import firmware_probe


@dataclasses.dataclass(frozen=True)
class Policy:
    """What the options of a host permit.

    :param allow_unsafe_host: whether to offer devices on a host that cannot
        isolate guests
    :param cleaners: the cleaners that root has defined, by name
    :param strict: whether to refuse what :mod:`strict` refuses
    :param probes: the probes of firmware that root has defined, by name
    """

    allow_unsafe_host: bool = False
    cleaners: collections.abc.Mapping[str, cleaner.Cleaner] = (
        dataclasses.field(default_factory=dict))
    strict: bool = False
    probes: collections.abc.Mapping[str, firmware_probe.Probe] = (
        dataclasses.field(default_factory=dict))


#: That of a host without options.
DEFAULT = Policy()
