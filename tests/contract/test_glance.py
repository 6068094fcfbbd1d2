# SPDX-License-Identifier: Apache-2.0
"""Nova's download of the data of an image."""

import inspect
import io

from cryptography import exceptions
from nova import context
from nova.image import glance
import pytest

_IMAGE = 'a6a12670-7014-4cff-a563-cea949b57fb3'


class _Chunks(list):
    wrapped = True


class _Client:
    """A fake Glance client that returns the data of an image in chunks."""

    def call(self, _context, _version, method, args):
        assert (method, args) == ('data', (_IMAGE,))
        return _Chunks([b'one', b'two'])


class _Verifier:
    def __init__(self, good):
        self._good = good

    def update(self, chunk):
        pass

    def verify(self):
        if not self._good:
            raise exceptions.InvalidSignature


class _Target:
    """A download target with the methods that nova_accel's target has."""

    def __init__(self):
        self._file = io.BytesIO()
        self.chunks = 0

    def write(self, chunk):
        self.chunks += 1
        return self._file.write(chunk)

    def truncate(self, size=None):
        return self._file.truncate(size)

    @property
    def content(self):
        return self._file.getvalue()


def test_glance_api_has_the_parameters_we_pass():
    assert list(inspect.signature(glance.API.get).parameters)[:3] == [
        'self', 'context', 'id_or_uri']
    takes = list(inspect.signature(glance.API.download).parameters)
    assert takes[:4] == ['self', 'context', 'id_or_uri', 'data']
    assert 'trusted_certs' in takes


def _download(monkeypatch, verifier=None):
    service = glance.GlanceImageServiceV2(client=_Client())
    monkeypatch.setattr(service, '_get_verifier',
                        lambda *args, **kwargs: verifier)
    monkeypatch.setattr(glance.API, '_get_session_and_image_id',
                        lambda self, _context, image: (service, image))
    target = _Target()
    try:
        glance.API().download(context.get_admin_context(), _IMAGE,
                              data=target)
    except Exception as error:
        return target, error
    return target, None


@pytest.mark.parametrize('verifier', [None, _Verifier(True)])
def test_data_is_written_in_chunks(monkeypatch, verifier):
    target, error = _download(monkeypatch, verifier)
    assert error is None
    assert (target.chunks, target.content) == (2, b'onetwo')


def test_invalid_signature_raises_and_truncates(monkeypatch):
    target, error = _download(monkeypatch, _Verifier(False))
    assert isinstance(error, exceptions.InvalidSignature)
    assert target.content == b''


def test_signatures_are_verified_if_configured():
    source = inspect.getsource(glance.GlanceImageServiceV2._get_verifier)
    assert 'CONF.glance.verify_glance_signatures' in source
