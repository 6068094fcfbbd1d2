# SPDX-License-Identifier: Apache-2.0
"""The functions of a machine, with their IOMMU groups and entries."""

import collections
import collections.abc

from nova_accel.core import model
from nova_accel.core.device_spec import spec_entry


class Machine:
    """What a kind may know (:class:`nova_accel.core.kind.Machine`)."""

    def __init__(self, functions: collections.abc.Iterable[model.Function],
                 ) -> None:
        self.functions = {function.address: function for function in sorted(
            functions, key=lambda function: function.address)}
        self.named: dict[model.Address, list[spec_entry.Entry]] = {}
        #: The number of virtual functions by card.
        self.vfs = collections.Counter[model.Address](
            function.physfn for function in self.functions.values()
            if function.physfn)
        groups = collections.defaultdict(list)
        for function in self.functions.values():
            if function.iommu_group is not None:
                groups[function.iommu_group].append(function)
        #: By IOMMU group, the functions to assign together.
        self.groups: dict[str, model.Unit] = {
            group: tuple(function.address for function in members
                         if not function.ignored_by_vfio)
            for group, members in groups.items()}

    def bundle(self, function: model.Function) -> model.Unit:
        alone = (function.address,)
        # A bridge is refused alone, without its IOMMU group.
        if function.is_bridge or function.iommu_group is None:
            return alone
        return self.groups.get(function.iommu_group) or alone
