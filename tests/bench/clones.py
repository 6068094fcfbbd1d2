# SPDX-License-Identifier: Apache-2.0
"""Copy a host in the databases of Nova and Placement.

A real nova-compute has written the rows of its host. A copy has the same rows
with another name and other uuids. So a scheduler reads what the nova-computes
of many equal hosts would have written.
"""

import collections.abc
import re
import uuid

from nova import context as nova_context
from nova import objects
from nova.db.api import api as nova_api_db
from nova.db.main import api as nova_db
from placement import db_api as placement_db
import sqlalchemy as sa

#: Takes the root provider and the name of a copy. Returns the uuids of its
#: providers by name. A provider without one gets any uuid.
Derived = collections.abc.Callable[[str, str],
                                   collections.abc.Mapping[str, str]]


def clone(host: str, root: str, names: collections.abc.Sequence[str],
          derived: Derived = lambda root, name: {}) -> None:
    """Copy a host.

    :param host: the name of the host and of its node
    :param root: the uuid of the compute node's resource provider
    :param names: the names of the copies
    """
    placement = placement_db.get_placement_engine()
    tree = _rows(placement, 'resource_providers', lambda table: (
        table.c.root_provider_id == sa.select(table.c.id).where(
            table.c.uuid == root).scalar_subquery()))
    copies = [_Copy(host, root, name, tree, derived) for name in names]
    _clone_tree(placement, tree, copies)
    context = nova_context.get_admin_context()
    mapping = objects.HostMapping.get_by_host(context, host)
    with nova_context.target_cell(context, mapping.cell_mapping) as cell:
        engine = nova_db.get_engine(context=cell)
        for name in ('services', 'compute_nodes'):
            _clone_rows(engine, name, host, copies)
    _clone_rows(nova_api_db.get_engine(), 'host_mappings', host, copies)


class _Copy:
    """Replaces the name and the uuids of a host in its rows."""

    _UUID = re.compile(r'[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}')

    def __init__(self, host, root, name, tree, derived):
        self._host, self._name = host, name
        uuids = derived(self.uuid(root), name)
        self._uuids = {
            row['uuid']: uuids.get(self._value(row['name']))
            or self.uuid(row['uuid']) for row in tree}

    def uuid(self, theirs: str) -> str:
        return str(uuid.uuid5(uuid.UUID(theirs), self._name))

    def row(self, row: dict) -> dict:
        """Return a copy of a row, without the id, which the database sets."""
        return {column: self._value(value) for column, value in row.items()
                if column != 'id'}

    def _value(self, value):
        if not isinstance(value, str):
            return value
        if value == self._host or value.startswith(f'{self._host}_'):
            return self._name + value.removeprefix(self._host)
        return self._UUID.sub(
            lambda match: self._uuids.get(match[0], match[0]), value)


def _clone_rows(engine, name, host, copies) -> None:
    rows = _rows(engine, name, lambda table: table.c.host == host)
    new = [copy.row(row) for copy in copies for row in rows]
    for copy, row in zip(copies, new, strict=True):
        if name == 'services':
            # Each service has its own uuid. No other copied row has it.
            row['uuid'] = copy.uuid(row['uuid'])
    _insert(engine, name, new)


def _clone_tree(engine, tree, copies) -> None:
    ids = [row['id'] for row in tree]
    first, step = max(ids), max(ids) - min(ids) + 1
    by_copy = [{old: first + 1 + number * step + old - min(ids)
                for old in ids} for number in range(len(copies))]
    _insert(engine, 'resource_providers', [
        {**copy.row(row), 'id': new[row['id']],
         'root_provider_id': new[row['root_provider_id']],
         'parent_provider_id': new.get(row['parent_provider_id'])}
        for copy, new in zip(copies, by_copy, strict=True) for row in tree])
    for name in ('inventories', 'resource_provider_traits'):
        rows = _rows(engine, name, lambda table: (
            table.c.resource_provider_id.in_(ids)))
        _insert(engine, name, [
            {**{column: value for column, value in row.items()
                if column != 'id'},
             'resource_provider_id': new[row['resource_provider_id']]}
            for new in by_copy for row in rows])


def _rows(engine, name, where) -> list[dict]:
    table = _table(engine, name)
    with engine.connect() as connection:
        return [dict(row) for row in connection.execute(
            sa.select(table).where(where(table))).mappings()]


def _insert(engine, name, rows) -> None:
    if rows:
        with engine.begin() as connection:
            connection.execute(sa.insert(_table(engine, name)), rows)


def _table(engine, name) -> sa.Table:
    return sa.Table(name, sa.MetaData(), autoload_with=engine)
