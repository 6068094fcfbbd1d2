# SPDX-License-Identifier: Apache-2.0
"""Servers that may come back to this host for what they had here.

Seam: ``nova.objects.MigrationList``: ``get_in_progress_by_host_and_node``,
where a resize that waits to be confirmed counts as in progress. Checked with
Nova 33 and 34.
"""

import collections.abc

from nova import context
from nova import objects
import nova.conf

from nova_accel.compute import ledger
from nova_accel.compute import record
from nova_accel.core import model
from nova_accel.core import providers
from nova_accel.core import waiting

CONF = nova.conf.CONF


def kept(left: collections.abc.Collection[model.Address], host: model.Host,
         node: providers.Node, promises: ledger.Ledger,
         recorded: record.Record) -> set[model.Address]:
    """Which of what nobody holds somebody may come back for.

    :param left: what is ready and nobody holds
    """
    offered = providers.offered(host, node.uuid, node.name)
    held = recorded.read()
    found: set[model.Address] = set()
    for migration in objects.MigrationList.get_in_progress_by_host_and_node(
            context.get_admin_context(), CONF.host, node.name):
        if migration.source_node != node.name:
            continue
        server = migration.instance_uuid
        promised = [promises.of_consumer(consumer)
                    for consumer in (server, migration.uuid)]
        if None in promised:
            # Nobody knows; the next round may.
            return set(left)
        found |= waiting.kept(
            [address for address in left if address not in found], server,
            map(ledger.promised, promised), held.get(server, ()), offered)
    return found
