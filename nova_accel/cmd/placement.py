# SPDX-License-Identifier: Apache-2.0
"""Read the providers of a compute node from Placement, for the command.

The connection uses the options in ``[placement]`` of nova.conf, as Nova does.
"""

import collections.abc
import contextlib
import typing

from keystoneauth1 import adapter
from keystoneauth1 import exceptions
from keystoneauth1 import loading
from oslo_config import cfg

from nova_accel.core import errors
from nova_accel.core.placement import inventory
from nova_accel.core.placement import queries

_GROUP = 'placement'

_REMEDY = ('check [placement] in nova.conf, and whether Keystone and '
           'Placement are running')


def find(get: queries.Get, name: str) -> inventory.Node:
    """Return the compute node of this name.

    :raises errors.AccelError: if Placement has none, or does not answer
    """
    root = queries.root(get, name)['uuid']
    return inventory.Node(root, name, {
        provider['uuid']: provider['name']
        for provider in queries.ours(get, root)})


def is_configured(conf: cfg.ConfigOpts) -> bool:
    """Whether nova.conf says how to authenticate to Placement."""
    loading.register_auth_conf_options(conf, _GROUP)
    return conf[_GROUP].auth_type is not None


def connect(conf: cfg.ConfigOpts) -> queries.Get:
    """Connect to Placement with the options of nova.conf.

    :raises errors.AccelError: here and in each call of the result, if Keystone
        or Placement does not answer, or answers with an error
    """
    with _translated_errors():
        placement = _adapter(conf)

    def get(path: str) -> typing.Any:
        with _translated_errors():
            answer = placement.get(
                path, microversion=queries.MICROVERSION, raise_exc=False)
        try:
            if answer.status_code == 200:
                return answer.json()
        except ValueError:
            pass
        raise errors.AccelError(
            'Placement', f'answers {answer.status_code} to {path}: '
            f'{errors.quote(answer.text)}', _REMEDY)

    return get


def _adapter(conf: cfg.ConfigOpts) -> adapter.Adapter:
    loading.register_session_conf_options(conf, _GROUP)
    loading.register_auth_conf_options(conf, _GROUP)
    options = loading.get_adapter_conf_options(include_deprecated=False)
    # The same defaults as in Nova.
    cfg.set_defaults(options, valid_interfaces=['internal', 'public'],
                     service_type='placement')
    conf.register_opts(options, _GROUP)
    auth = loading.load_auth_from_conf_options(conf, _GROUP)
    if auth is None:
        raise errors.AccelError(
            'nova.conf', 'has no auth_type in [placement]', 'set '
            '--config-file to the nova.conf of nova-compute')
    session = loading.load_session_from_conf_options(conf, _GROUP, auth=auth)
    return loading.load_adapter_from_conf_options(conf, _GROUP,
                                                  session=session)


@contextlib.contextmanager
def _translated_errors() -> collections.abc.Iterator[None]:
    """Raise exceptions of keystoneauth1 as AccelError."""
    try:
        yield
    except exceptions.ClientException as error:
        raise errors.AccelError(
            'Placement', f'cannot be queried: {error}', _REMEDY) from None
