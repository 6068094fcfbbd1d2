# SPDX-License-Identifier: Apache-2.0
"""The wrappers of Nova's functions."""

import inspect
import pathlib
import types

import pytest

from nova_accel import seams
from nova_accel.api import expansion
from nova_accel.compute import patches as compute
from nova_accel.scheduler import patches as scheduler

_PAGE = (pathlib.Path(__file__).parents[2] / 'doc' / 'source'
         / 'contributor' / 'architecture.rst').read_text()


def _positional(function):
    return [parameter.name for parameter
            in inspect.signature(function).parameters.values()
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]


@pytest.mark.parametrize('seam', seams.WRAPPED, ids=str)
def test_nova_has_every_wrapped_function(seam):
    """Nova's function has the parameters that the wrapper names."""
    [_original, *named] = _positional(seam.wrapper)
    assert _positional(seam.original)[:len(named)] == named
    assert f'``{seam.name}``' in _PAGE or f'.{seam.name}``' in _PAGE


def test_wrapped_list_has_all_seams():
    assert {expansion.get_flavor_by_flavor_id, *compute.CLAIMS,
            compute.init_instance, scheduler.claim_resources,
            scheduler.from_host_state} < set(seams.WRAPPED)


class _Theirs:
    def method(self, word):
        return self, word

    @classmethod
    def of_class(cls, word):
        return cls, word

    @staticmethod
    def static(word):
        return None, word


@pytest.mark.parametrize('name, owner', [
    ('method', _Theirs()), ('of_class', _Theirs), ('static', None)])
def test_wrapper_is_called_once_per_call(name, owner, monkeypatch):
    monkeypatch.setattr(seams, 'WRAPPED', [])
    monkeypatch.setattr(_Theirs, name, inspect.getattr_static(_Theirs, name))
    calls = []

    @seams.wrap(_Theirs, name)
    def seam(original, *args):
        calls.append(args)
        return original(*args)

    assert not seam.is_installed
    for _time in range(2):
        seam.install()
        assert seam.is_installed
    assert getattr(owner or _Theirs, name)('x') == (owner, 'x')
    assert len(calls) == 1


def test_missing_function_cannot_be_wrapped(monkeypatch):
    monkeypatch.setattr(seams, 'WRAPPED', [])
    seam = seams.wrap(types.SimpleNamespace(), 'gone')(lambda original: None)
    with pytest.raises(AttributeError, match='gone'):
        seam.install()
