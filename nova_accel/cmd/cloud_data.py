# SPDX-License-Identifier: Apache-2.0
"""Flavors, servers, and what Cyborg has, from their APIs or from files.

A file has the output of a command such as ``openstack flavor list --all --long
-f json``. Its columns have the names of the API's fields, but for blanks and
capitals.
"""

import collections.abc
import contextlib
import functools
import importlib
import json
import types
import typing

from nova_accel import safe_yaml
from nova_accel.core import errors
from nova_accel.core.migration import cyborg
from nova_accel.core.migration import plan
from nova_accel.core.request import device_profile
from nova_accel.profiles import document

# Largest accepted file, in bytes; a server takes about one thousand.
_MAX_BYTES = 256 << 20

_SIZES = ('vcpus', 'ram', 'disk', 'ephemeral', 'swap')


class CloudData:
    """Reads the objects of a cloud, and changes flavors.

    :param files: paths by the name of the objects, None for the API
    :param name: the cloud in clouds.yaml, None for that of the environment
    """

    def __init__(self, files: collections.abc.Mapping[str, str | None],
                 name: str | None) -> None:
        self._files = files
        self._name = name

    def flavors(self) -> list[plan.Flavor]:
        """Return all flavors.

        :raises errors.AccelError: here and below, if they cannot be read
        """
        return [self._flavor(row) for row in self._rows(
            'flavors', ('name', 'id'), lambda cloud: cloud.compute.flavors(
                is_public=None, get_extra_specs=True))]

    def servers(self) -> list[plan.Server]:
        """Return all servers; none if only flavors are in a file."""
        if self._files['flavors'] and not self._files['servers']:
            return []
        return [_server(row) for row in self._rows(
            'servers', ('id',), lambda cloud: cloud.compute.servers(
                all_projects=True))]

    def requests(self) -> list[cyborg.Request]:
        """Return the accelerator requests of Cyborg."""
        return [cyborg.Request(
            row['uuid'], row.get('device_profile_name') or '',
            row.get('instance_uuid') or '', row.get('hostname') or '')
            for row in self._rows(
                'arqs', ('uuid',),
                lambda cloud: cloud.accelerator.accelerator_requests())]

    def profiles(self) -> tuple[list[device_profile.Profile],
                                list[errors.ProfileError]]:
        """Return the device profiles of Cyborg, and errors of the others."""
        rows = self._rows('profiles', (), lambda cloud:
                          cloud.accelerator.device_profiles())
        return document.read(json.dumps(rows), 'Cyborg.json') if rows else (
            [], [])

    def change(self, change: plan.Change) -> None:
        """Change the extra specs of a flavor."""
        if self._files['flavors']:
            raise errors.AccelError(
                '--flavors', 'a file cannot be changed', 'run the commands '
                'of the step, or leave --flavors out')
        with self._connected() as cloud:
            cloud.compute.create_flavor_extra_specs(change.flavor.uuid,
                                                    dict(change.added))
            for key in change.removed:
                cloud.compute.delete_flavor_extra_specs_property(
                    change.flavor.uuid, key)

    def _rows(self, name: str, needed: collections.abc.Iterable[str],
              ask: collections.abc.Callable[
                  [typing.Any], collections.abc.Iterable[typing.Any]],
              ) -> list[plan.Json]:
        """Return objects as a file or the API has them.

        :param needed: fields that each of them must have
        """
        path = self._files[name]
        if path:
            rows = _load(path)
        else:
            with self._connected() as cloud:
                rows = [found.to_dict() for found in ask(cloud)]
        rows = [{key.lower().replace(' ', '_'): value
                 for key, value in row.items()} for row in rows]
        for key in needed:
            if not all(row.get(key) for row in rows):
                raise _unusable(path, f'has no "{key}" for one of the {name}')
        return rows

    @contextlib.contextmanager
    def _connected(self) -> collections.abc.Iterator[typing.Any]:
        """Yield the connection; raise the exceptions of it as AccelError."""
        sdk, keystone = self._modules
        try:
            yield self._connection
        except (sdk.SDKException, keystone.ClientException) as error:
            raise errors.AccelError(
                'the cloud', f'cannot be queried: {error}', 'set the '
                'credentials of an administrator (OS_CLOUD or --os-cloud), '
                'or name files') from None

    @functools.cached_property
    def _modules(self) -> tuple[types.ModuleType, types.ModuleType]:
        # openstacksdk is slow to import, and not needed with files.
        try:
            return (importlib.import_module('openstack.exceptions'),
                    importlib.import_module('keystoneauth1.exceptions'))
        except ImportError as error:
            raise errors.AccelError(
                'openstacksdk', f'cannot be loaded: {error}', 'install it, or '
                'name files') from None

    @functools.cached_property
    def _connection(self) -> typing.Any:
        return importlib.import_module('openstack').connect(cloud=self._name)

    def _flavor(self, row: plan.Json) -> plan.Flavor:
        specs = row.get('extra_specs', row.get('properties'))
        if not isinstance(specs, dict):
            raise errors.AccelError(
                f'flavor {errors.quote(row.get("name"))}', 'has no extra '
                'specs here', 'write the file with "openstack flavor list '
                '--all --long -f json"')
        return plan.Flavor(
            row['name'], row['id'], specs,
            {name: row[name] for name in _SIZES if row.get(name)},
            row.get('is_public', True))


def _server(row: plan.Json) -> plan.Server:
    flavor = row.get('flavor') or row.get('flavor_name') or {}
    if isinstance(flavor, str):
        flavor = {'name': flavor}
    return plan.Server(
        row['id'], row.get('name') or '', flavor.get('original_name')
        or flavor.get('name') or flavor.get('id') or '',
        flavor.get('extra_specs'),
        row.get('compute_host') or row.get('host') or '')


def _load(path: str) -> list[typing.Any]:
    """Return the rows in a file.

    :raises errors.AccelError: if it is not the output of a command
    :raises OSError: if it cannot be read
    """
    try:
        [rows] = safe_yaml.load_json(safe_yaml.read(path, _MAX_BYTES))
        if isinstance(rows, dict):
            # An answer of an API has one list, and perhaps links.
            rows = next(iter(rows.values()), rows)
        if not isinstance(rows, list) or not all(
                isinstance(row, dict) for row in rows):
            raise ValueError('is not a list of objects')
        return rows
    except (ValueError, RecursionError) as error:
        raise _unusable(path, safe_yaml.why(error)) from None


def _unusable(path: str | None, reason: str) -> errors.AccelError:
    return errors.AccelError(
        errors.path(path or 'the API'), reason, 'write the file with an '
        '"openstack" command that lists, and -f json')
