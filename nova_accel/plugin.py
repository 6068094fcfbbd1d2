# SPDX-License-Identifier: Apache-2.0
"""The names for packages with a kind or a fabric manager.

An entry point in the group :data:`NAMESPACE` names a :class:`Kind`, one in the
group :data:`FABRIC_NAMESPACE` a :class:`FabricManager`. Names that are here,
and in :mod:`nova_accel.testing`, change only with a release note under
``upgrade``; all others can change in any release.
"""

from nova_accel.core.errors import AccelError
from nova_accel.core.errors import AssignmentError
from nova_accel.core.errors import DeviceError
from nova_accel.core.errors import quote
from nova_accel.core.fabric.manager import NAMESPACE as FABRIC_NAMESPACE
from nova_accel.core.fabric.manager import Definition
from nova_accel.core.fabric.manager import Fabric
from nova_accel.core.fabric.manager import FabricError
from nova_accel.core.fabric.manager import FabricManager
from nova_accel.core.fabric.manager import FailedLinks
from nova_accel.core.fabric.manager import Failure
from nova_accel.core.fabric.manager import Member
from nova_accel.core.fabric.manager import Operations
from nova_accel.core.fabric.manager import Partition
from nova_accel.core.fabric.manager import in_order
from nova_accel.core.hostdev import Hostdev
from nova_accel.core.kind import LIMIT
from nova_accel.core.kind import NAMESPACE
from nova_accel.core.kind import DeviceConfig
from nova_accel.core.kind import Entry
from nova_accel.core.kind import Enumerator
from nova_accel.core.kind import Examiner
from nova_accel.core.kind import Inspector
from nova_accel.core.kind import Kind
from nova_accel.core.kind import Machine
from nova_accel.core.kind import Pool
from nova_accel.core.kind import Preparer
from nova_accel.core.kind import Programmer
from nova_accel.core.kind import Reader
from nova_accel.core.kind import Refused
from nova_accel.core.kind import Suggester
from nova_accel.core.kind import Tree
from nova_accel.core.kind import read_limit
from nova_accel.core.model import Address
from nova_accel.core.model import Device
from nova_accel.core.model import Function
from nova_accel.core.model import Host
from nova_accel.core.model import MdevAddress
from nova_accel.core.model import ParentName
from nova_accel.core.model import PciAddress
from nova_accel.core.model import Region
from nova_accel.core.model import Unit
from nova_accel.core.placement.inventory import Offered
from nova_accel.core.request.fpga import Bitstream
from nova_accel.host.pci import path as function_path
from nova_accel.host.tree import is_live
from nova_accel.host.tree import mount as sysfs_path

__all__ = [
    'AccelError', 'Address', 'AssignmentError', 'Bitstream', 'Definition',
    'Device', 'DeviceConfig', 'DeviceError', 'Entry', 'Enumerator', 'Examiner',
    'FABRIC_NAMESPACE', 'Fabric', 'FabricError', 'FabricManager',
    'FailedLinks', 'Failure', 'Function', 'Host', 'Hostdev', 'Inspector',
    'Kind', 'LIMIT', 'Machine', 'MdevAddress', 'Member', 'NAMESPACE',
    'Offered', 'Operations', 'ParentName', 'Partition', 'PciAddress', 'Pool',
    'Preparer', 'Programmer', 'Reader', 'Refused', 'Region', 'Suggester',
    'Tree', 'Unit', 'function_path', 'in_order', 'is_live', 'quote',
    'read_limit', 'sysfs_path',
]
