# SPDX-License-Identifier: Apache-2.0
"""Kinds that cannot be used."""

from unittest import mock

import pytest

from nova_accel import plugin
from nova_accel.host import loader


class _Incomplete(plugin.Enumerator, plugin.Preparer):
    """It cannot release what it prepares."""

    def __init__(self, tree):
        """Keep nothing."""

    def pools(self, function, entry, machine):
        return []

    def prepare(self, device, item, config):
        """Prepare it."""

    def prepared(self, host):
        return []


@pytest.mark.parametrize('open_, error, reason', [
    (_Incomplete, TypeError, 'abstract method release'),
    (lambda tree: tree['nothing'], KeyError, 'nothing')])
def test_the_reason_is_raised_for_each_function(open_, error, reason):
    with mock.patch.object(loader, 'load', return_value={
            'faulty': plugin.Kind(open=open_)}):
        opened = loader.open_all({})['faulty']
    with pytest.raises(error, match=reason):
        opened.pools(None, None, None)
